"""Does the bundle run? Asked before it is put in place.

Opens each graph and checks what a broken export would get wrong: logits are finite, and a prompt
read in pieces through the cache gives the logits of the prompt read at once. Skipped where there
is no usable onnxruntime, or one too old for a graph: an export needs none.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_runtime.bundle import CACHE_TYPES, GraphEntry, Manifest, ModelDimensions
from edge_runtime.embedding.embedder import Embedder
from edge_runtime.engine.kv_cache import CacheGeometry, KVCache
from edge_runtime.engine.model_runner import ModelRunner, OrtModelRunner, StepInput
from edge_runtime.engine.portable_runner import PortableRunner
from edge_runtime.errors import ExportError, ManifestError, ProviderError, RunError
from edge_runtime.providers.ort import onnxruntime, require_version
from edge_runtime.providers.session import SessionOptions
from edge_runtime.providers.threads import plan_threads

_PROBE_TOKENS = 16
_CHUNK = 64
# Of the spread of the logits. Integer compute rounds activations, and a difference in the last bit
# of a sum may turn a rounding: up to 0.1 was seen on good exports. A cache that is read wrongly gives
# other logits altogether, 1 and more.
_TOLERANCE = 0.25
_PROBE_TEXTS = (
    "A short text.",
    "A text that is somewhat longer than the one that came before it.",
)
# Of a vector's length: integer compute rounds a text's activations a little differently in
# company. A mask that is read wrongly gives another vector.
_VECTOR_TOLERANCE = 0.1


def validate_bundle(directory: Path, manifest: Manifest) -> bool:
    """Run each graph on a few tokens.

    Returns:
        False where there is no usable onnxruntime and nothing was run.

    Raises:
        ExportError: a graph does not open or does not run, or its logits are wrong.
    """
    fused = [g for g in manifest.graphs if g.dialect == "fused" and _is_usable(g)]
    if not fused:
        return False
    tokens, wanted = _check_fused(directory, manifest.dimensions, fused[0])
    for graph in fused[1:]:
        _check_fused(directory, manifest.dimensions, graph)
    for together in _portable(manifest.graphs):
        _check_portable(directory, manifest, together, tokens, wanted)
    return True


def _is_usable(graph: GraphEntry) -> bool:
    try:
        require_version(graph.oldest_onnxruntime, graph.file)
    except ProviderError:
        return False
    return True


def _check_fused(
    directory: Path, dimensions: ModelDimensions, graph: GraphEntry
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The tokens that were run, and the last one's logits."""
    count = min(_PROBE_TOKENS, dimensions.context_length)
    tokens = np.arange(count, dtype=np.int64) * 37 % dimensions.vocabulary_size
    try:
        with (
            closing(KVCache(_geometry(dimensions, count, graph))) as cache,
            closing(
                OrtModelRunner(
                    directory / graph.file,
                    cache,
                    vocabulary_size=dimensions.vocabulary_size,
                    options=SessionOptions(plan_threads()),
                )
            ) as runner,
        ):
            at_once = _last_logits(runner, tokens, [count])
            in_pieces = _last_logits(runner, tokens, _pieces(count))
    except ProviderError as exc:
        raise ExportError(f"the exported graph does not open: {exc.message}") from exc
    except RunError as exc:
        raise ExportError(f"the exported graph does not run: {exc.message}") from exc
    if not np.isfinite(at_once).all():
        raise ExportError("the exported graph gives logits that are not finite")
    spread = max(float(at_once.std()), 1e-6)
    difference = float(np.sqrt(np.mean((at_once - in_pieces) ** 2))) / spread
    if difference > _TOLERANCE:
        raise ExportError(f"the exported graph's cache is wrong: logits differ by {difference:.0%}")
    return tokens, at_once


def _geometry(dimensions: ModelDimensions, capacity: int, graph: GraphEntry) -> CacheGeometry:
    assert graph.cache_type in CACHE_TYPES, graph.cache_type
    return CacheGeometry.of(dimensions, slots=1, capacity=capacity, cache_type=graph.cache_type)


def _portable(graphs: Sequence[GraphEntry]) -> list[list[GraphEntry]]:
    """Portable graphs that a step chooses between, together."""
    sets: dict[tuple[str, int | None], list[GraphEntry]] = {}
    for graph in graphs:
        if graph.dialect == "portable":
            sets.setdefault((graph.precision, graph.capacity), []).append(graph)
    return list(sets.values())


def _check_portable(
    directory: Path,
    manifest: Manifest,
    graphs: Sequence[GraphEntry],
    tokens: NDArray[np.int64],
    wanted: NDArray[np.float32],
) -> None:
    """The CPU provider runs every dialect: the logits must be the fused graph's.

    Raises:
        ExportError: they are not, or a graph does not run.
    """
    dimensions, count = manifest.dimensions, len(tokens)
    try:
        with (
            closing(KVCache(CacheGeometry.of(dimensions, slots=1, capacity=count))) as cache,
            closing(
                PortableRunner(
                    [directory / graph.file for graph in graphs],
                    cache,
                    vocabulary_size=dimensions.vocabulary_size,
                    options=SessionOptions(plan_threads(), optimize=True),
                )
            ) as runner,
        ):
            found = _last_logits(runner, tokens, _pieces(count))
    except (ProviderError, RunError, ManifestError) as exc:
        raise ExportError(f"{graphs[0].file} does not run: {exc.message}") from exc
    spread = max(float(wanted.std()), 1e-6)
    difference = float(np.sqrt(np.mean((wanted - found) ** 2))) / spread
    if not difference <= _TOLERANCE:  # also where it is not a number
        raise ExportError(f"{graphs[0].file}: its logits differ by {difference:.0%}")


def validate_encoder(directory: Path) -> bool:
    """Run the graph on two texts, alone and together.

    Returns:
        False where there is no usable onnxruntime and nothing was run.

    Raises:
        ExportError: the graph does not open or does not run, or its vectors are wrong.
    """
    try:
        onnxruntime()
    except ProviderError:
        return False
    try:
        with Embedder.load(directory) as embedder:
            alone = np.concatenate(
                [embedder.embed([text], truncate=True).vectors for text in _PROBE_TEXTS]
            )
            together = embedder.embed(_PROBE_TEXTS, truncate=True).vectors
    except (ProviderError, RunError) as exc:
        raise ExportError(f"the exported graph does not run: {exc.message}") from exc
    if not np.isfinite(alone).all():
        raise ExportError("the exported graph gives vectors that are not finite")
    difference = np.linalg.norm(alone - together, axis=1) / np.linalg.norm(alone, axis=1)
    if difference.max() > _VECTOR_TOLERANCE:
        raise ExportError(
            f"the exported graph's mask is wrong: vectors differ by {difference.max():.0%}"
        )
    return True


def _pieces(count: int) -> list[int]:
    """A chunk, another one on top of it, and a single token as decoding has it."""
    first = min(7, count // 2)
    return [piece for piece in (first, count - first - 1, 1) if piece]


def _last_logits(
    runner: ModelRunner, tokens: NDArray[np.int64], pieces: list[int]
) -> NDArray[np.float32]:
    held = 0
    for count in pieces:
        logits = runner.run(
            StepInput(
                first_slot=0,
                token_ids=tokens[None, held : held + count],
                held=np.array([held], np.int32),
                lengths=np.array([count], np.int32),
                logits_indices=np.array([[count - 1]], np.int64),
            )
        )
        held += count
    last: NDArray[np.float32] = logits[0, 0].copy()
    return last


def bundle_logits(
    directory: Path, manifest: Manifest, tokens: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Logits after each token, float32 (T, V): read in chunks through the cache.

    Args:
        directory: the bundle.
        manifest: its.
        tokens: int64 (T,), read from position 0.

    Raises:
        ExportError: the graph does not run.
        ProviderError: there is no usable onnxruntime, or it does not open the graph.
    """
    dimensions = manifest.dimensions
    logits = np.empty((len(tokens), dimensions.vocabulary_size), np.float32)
    with (
        closing(KVCache(CacheGeometry.of(dimensions, slots=1, capacity=len(tokens)))) as cache,
        closing(
            OrtModelRunner(
                directory / manifest.graphs[0].file,
                cache,
                vocabulary_size=dimensions.vocabulary_size,
                options=SessionOptions(plan_threads()),
            )
        ) as runner,
    ):
        for start in range(0, len(tokens), _CHUNK):
            chunk = tokens[start : start + _CHUNK]
            step = StepInput(
                first_slot=0,
                token_ids=chunk[None],
                held=np.array([start], np.int32),
                lengths=np.array([len(chunk)], np.int32),
                logits_indices=np.arange(len(chunk), dtype=np.int64)[None],
            )
            try:
                logits[start : start + len(chunk)] = runner.run(step)[0]
            except RunError as exc:
                raise ExportError(f"the exported graph does not run: {exc.message}") from exc
    return logits
