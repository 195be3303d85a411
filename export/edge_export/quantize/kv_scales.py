"""Scales of an int8 cache: how large keys and values get, on a text.

Reads the calibration text through the float graph that was just made, and looks at what it left in
the cache: keys after rotary embedding, and values. Runs it by the runtime's own runner; knows no
architecture.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from edge_export.graph.int8_cache import CacheScales, rotary_dimensions
from edge_runtime.bundle import ModelDimensions
from edge_runtime.engine.kv_cache import CacheGeometry, KVCache
from edge_runtime.engine.model_runner import OrtModelRunner, StepInput
from edge_runtime.errors import ExportError, RunError
from edge_runtime.providers.session import SessionOptions
from edge_runtime.providers.threads import plan_threads

_CHUNK = 64
_LARGEST = 127
# What other texts reach beyond this one. Clipping a key or value of the first tokens, which every
# later token attends to, costs far more than a step that is larger by a tenth.
_MARGIN = 1.1
# Of the layer's largest number: a channel that this text leaves silent may speak on another.
_SMALLEST_SHARE = 1e-3


def measure_scales(
    decoder: onnx.ModelProto,
    graph: Path,
    dimensions: ModelDimensions,
    windows: Sequence[NDArray[np.int64]],
) -> list[CacheScales]:
    """The scales of each layer.

    Args:
        decoder: the graph over a float32 cache.
        graph: its file.
        dimensions: its sizes.
        windows: int64 (tokens,), texts that are each read from position 0.

    Raises:
        ProviderError: no usable onnxruntime.
        ExportError: the graph does not run, or what it computes is not finite.
    """
    capacity = max(map(len, windows))
    shape = (dimensions.layers, 2, dimensions.kv_heads, dimensions.head_size)
    largest = np.zeros(shape, np.float32)
    rotary = rotary_dimensions(decoder)
    with (
        closing(KVCache(CacheGeometry.of(dimensions, slots=1, capacity=capacity))) as cache,
        closing(
            OrtModelRunner(
                graph,
                cache,
                vocabulary_size=dimensions.vocabulary_size,
                options=SessionOptions(plan_threads()),
            )
        ) as runner,
    ):
        for window in windows:
            _read(runner, window)
            for layer in range(dimensions.layers):
                for part in (0, 1):
                    held = cache.array(layer, part)[0, :, : len(window)]
                    reached = _reached(held, rotary[layer] if part == 0 else 0)
                    np.maximum(largest[layer, part], reached, out=largest[layer, part])
    if not np.isfinite(largest).all():
        raise ExportError("the exported graph's keys or values are not finite")
    return [CacheScales(*(_scales(part) for part in layer)) for layer in largest]


def _read(runner: OrtModelRunner, window: NDArray[np.int64]) -> None:
    for start in range(0, len(window), _CHUNK):
        ids = window[start : start + _CHUNK]
        step = StepInput(
            first_slot=0,
            token_ids=ids[None],
            held=np.array([start], np.int32),
            lengths=np.array([len(ids)], np.int32),
            logits_indices=np.zeros((1, 0), np.int64),
        )
        try:
            runner.run(step)
        except RunError as exc:
            raise ExportError(f"the exported graph does not run: {exc.message}") from exc


def _reached(held: NDArray[np.float32], rotary: int) -> NDArray[np.float32]:
    """The largest magnitudes over tokens: (KV, T, D) -> (KV, D).

    Dimensions that rotate together are taken by their length, which no position changes: at
    positions past this text the one may be where the other is here.
    """
    lengths = np.abs(held)
    half = rotary // 2
    if half:
        pair = np.hypot(held[..., :half], held[..., half:rotary])
        lengths[..., :half] = lengths[..., half:rotary] = pair
    reached: NDArray[np.float32] = lengths.max(axis=1)
    return reached


def _scales(largest: NDArray[np.float32]) -> NDArray[np.float32]:
    floor = max(float(largest.max()) * _SMALLEST_SHARE, float(np.finfo(np.float32).tiny) * 1e6)
    scales: NDArray[np.float32] = np.maximum(largest, floor) * np.float32(_MARGIN / _LARGEST)
    return scales
