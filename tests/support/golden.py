"""The tiny checkpoints of tests/golden, their references, and exported graphs to hold to them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from edge_export.pipeline import GRAPH_NAME
from numpy.typing import NDArray

from edge_runtime.bundle import Manifest, read_manifest
from edge_runtime.engine.kv_cache import CacheGeometry, KVCache
from edge_runtime.engine.model_runner import OrtModelRunner, StepInput
from edge_runtime.providers.ort import onnxruntime
from edge_runtime.providers.session import SessionOptions
from edge_runtime.providers.threads import plan_threads

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = sorted(p.parent.name for p in GOLDEN.glob("*/reference.npz"))
WINDOWED = {"gemma2", "gemma3", "mistral", "phi3", "phi3-long", "qwen2-window", "starcoder2"}
# onnxruntime 1.23 looks back over one token more than the window.
EXACT_WINDOWS = tuple(map(int, onnxruntime().__version__.split(".")[:2])) >= (1, 24)
# A case without weights of its own has those of this one.
_WEIGHTS_OF = {
    "llama-linear": "llama",
    "llama-dynamic": "llama",
    "llama-yarn": "llama",
    "llama3": "llama",
    "qwen2-window": "qwen2",
    "phi3-long": "phi3",
}


@dataclass(frozen=True, eq=False)
class Reference:
    """What transformers computes of a case: see edge_tools.make_golden."""

    prompt: list[int]
    logits: NDArray[np.float32]
    greedy: list[int]
    context_length: int | None


def reference(case: str) -> Reference:
    """The reference of a case."""
    with np.load(GOLDEN / case / "reference.npz") as held:
        return Reference(
            prompt=held["prompt"].tolist(),
            logits=held["logits"],
            greedy=held["greedy"].tolist(),
            context_length=int(held["context_length"]) or None,
        )


def write_checkpoint(case: str, folder: Path) -> Path:
    """A model directory of a case, with the tokenizer that all share."""
    directory = folder / case
    directory.mkdir(parents=True)
    weights = GOLDEN / _WEIGHTS_OF.get(case, case)
    for file in (
        *GOLDEN.glob("tokenizer*.json"),
        *weights.glob("*.safetensors*"),
        GOLDEN / case / "config.json",
    ):
        shutil.copy(file, directory)
    return directory


class ExportedGraph:
    """A bundle's graph over a cache of a few slots."""

    def __init__(self, bundle: Path, *, slots: int = 1, capacity: int = 192) -> None:
        self.manifest: Manifest = read_manifest(bundle)
        dimensions = self.manifest.dimensions
        capacity = min(capacity, dimensions.context_length)
        self._cache = KVCache(CacheGeometry.of(dimensions, slots=slots, capacity=capacity))
        self._runner = OrtModelRunner(
            bundle / GRAPH_NAME,
            self._cache,
            vocabulary_size=dimensions.vocabulary_size,
            options=SessionOptions(plan_threads(1)),
        )

    def run(
        self, rows: Sequence[Sequence[int]], *, held: Sequence[int], first_slot: int = 0
    ) -> list[NDArray[np.float32]]:
        """Logits at every new position of each row; rows may be of different lengths."""
        width = max(map(len, rows))
        ids = np.array([[*row, *[0] * (width - len(row))] for row in rows], np.int64)
        step = StepInput(
            first_slot=first_slot,
            token_ids=ids,
            held=np.array(held, np.int32),
            lengths=np.array([len(row) for row in rows], np.int32),
            logits_indices=np.broadcast_to(np.arange(width), ids.shape).astype(np.int64),
        )
        logits = self._runner.run(step).copy()
        return [logits[i, : len(row)] for i, row in enumerate(rows)]

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The tokens that follow a prompt, each the likeliest."""
        (logits,) = self.run([prompt], held=[0])
        tokens = [int(logits[-1].argmax())]
        while len(tokens) < count:
            (logits,) = self.run([tokens[-1:]], held=[len(prompt) + len(tokens) - 1])
            tokens.append(int(logits[-1].argmax()))
        return tokens

    def close(self) -> None:
        """Let session and cache go."""
        self._runner.close()
        self._cache.close()


def relative_difference(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """The largest difference over the largest logit."""
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max() / np.abs(expected).max())
