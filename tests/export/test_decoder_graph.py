"""The graph against a plain float32 forward pass of the same weights.

Q8_0 weights are carried bit for bit, and with float compute in the matrix products nothing but the
order of additions is left: what differs is a defect of the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from edge_export.pipeline import GRAPH_NAME, ExportOptions, export_model
from edge_tools.reference_llama import ReferenceLlama
from numpy.typing import NDArray
from support.tiny_gguf import write_tiny_gguf

from edge_runtime.engine.kv_cache import CacheGeometry, KVCache
from edge_runtime.engine.model_runner import OrtModelRunner, StepInput
from edge_runtime.errors import SourceFormatError
from edge_runtime.providers.session import SessionOptions
from edge_runtime.providers.threads import plan_threads

CONTEXT = 64
TOKENS = [int(t) for t in np.random.default_rng(5).integers(0, 250, 40)]


class Graph:
    """An exported graph with float compute, over two slots."""

    def __init__(self, source: Path, folder: Path) -> None:
        manifest = export_model(source, folder, ExportOptions()).manifest
        exact = folder / "float_compute.onnx"
        model = onnx.load(str(folder / GRAPH_NAME), load_external_data=False)
        for node in model.graph.node:
            for attribute in node.attribute:
                if attribute.name == "accuracy_level":
                    attribute.i = 0
        onnx.save_model(model, str(exact))
        self.manifest = manifest
        self._cache = KVCache(CacheGeometry.of(manifest.dimensions, slots=2, capacity=CONTEXT))
        self._runner = OrtModelRunner(
            exact,
            self._cache,
            vocabulary_size=manifest.dimensions.vocabulary_size,
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


def assert_close(found: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    assert found.shape == expected.shape
    assert float(np.abs(found - expected).max()) < 2e-4 * float(np.abs(expected).max())


VARIANTS: dict[str, dict[str, Any]] = {
    "tied": {},
    "untied": {"tied": False},
    "biases": {"biases": True},
    "one kv head": {"kv_heads": 1},
    "as many kv heads": {"kv_heads": 4},
    "three layers": {"layers": 3},
    "linear rotary scaling": {
        "extra_metadata": {
            "llama.rope.scaling.type": "linear",
            "llama.rope.scaling.factor": 2.0,
        }
    },
    "rotary factors": {
        "extra_tensors": {"rope_freqs.weight": np.linspace(1.0, 8.0, 8, dtype=np.float32)}
    },
    "partial rotary": {
        "heads": 2,
        "kv_heads": 1,
        "extra_metadata": {"llama.rope.dimension_count": 16},
    },
    "another base": {"extra_metadata": {"llama.rope.freq_base": 500000.0}},
}


@pytest.fixture(params=VARIANTS, scope="module")
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("graph"), VARIANTS[request.param])


class Case:
    def __init__(self, folder: Path, variant: Mapping[str, Any]) -> None:
        source = folder / "tiny.gguf"
        write_tiny_gguf(source, **{"kind": "Q8_0", **variant})
        self.graph = Graph(source, folder / "bundle")
        self.expected = ReferenceLlama.open(source).logits(TOKENS)


def test_a_prompt_read_at_once(case: Case) -> None:
    (logits,) = case.graph.run([TOKENS], held=[0])
    assert_close(logits, case.expected)


def test_a_prompt_read_in_chunks_and_one_token_at_a_time(case: Case) -> None:
    held = 0
    for count in (1, 7, 20, 1, 1, 10):
        (logits,) = case.graph.run([TOKENS[held : held + count]], held=[held], first_slot=1)
        assert_close(logits, case.expected[held : held + count])
        held += count
    assert held == len(TOKENS)


def test_a_held_prefix_can_be_gone_back_to(case: Case) -> None:
    case.graph.run([TOKENS], held=[0])
    (logits,) = case.graph.run([TOKENS[10:15]], held=[10])
    assert_close(logits, case.expected[10:15])


def test_rows_of_different_lengths_prefill_and_decode_together(case: Case) -> None:
    long, short = case.graph.run([TOKENS[:20], TOKENS[:9]], held=[0, 0])
    assert_close(long, case.expected[:20])
    assert_close(short, case.expected[:9])
    long, short = case.graph.run([TOKENS[20:21], TOKENS[9:10]], held=[20, 9])
    assert_close(long, case.expected[20:21])
    assert_close(short, case.expected[9:10])


def test_no_logits_are_computed_where_none_are_asked_for(case: Case) -> None:
    step = StepInput(
        first_slot=0,
        token_ids=np.array([TOKENS[:5]], np.int64),
        held=np.array([0], np.int32),
        lengths=np.array([5], np.int32),
        logits_indices=np.zeros((1, 0), np.int64),
    )
    assert case.graph._runner.run(step).size == 0
    (logits,) = case.graph.run([TOKENS[5:9]], held=[5])
    assert_close(logits, case.expected[5:9])


@pytest.mark.parametrize("name", ["blk.1.attn_norm.weight", "output_norm.weight"])
def test_a_norm_that_is_not_a_number_is_refused(name: str, tmp_path: Path) -> None:
    source = tmp_path / "tiny.gguf"
    norm = write_tiny_gguf(source, kind="Q8_0")[name]
    data = source.read_bytes()
    assert data.count(norm.tobytes()) == 1
    damaged = norm.copy()
    damaged[3] = np.nan
    source.write_bytes(data.replace(norm.tobytes(), damaged.tobytes()))
    with pytest.raises(SourceFormatError, match="not a number"):
        export_model(source, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()
