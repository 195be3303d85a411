"""Calibration against the plain forward pass that exports are held to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edge_export.architectures.registry import read_spec
from edge_export.pipeline import ExportOptions, ExportProgress, export_model
from edge_export.quantize.calibration import Calibration, Moments
from edge_export.quantize.calibration_text import calibration_text, calibration_windows
from edge_export.quantize.recipes import quantize_tensor
from edge_export.source_weights import SourceWeights
from edge_export.sources.gguf import open_gguf
from edge_export.sources.gguf_tokenizer import build_tokenizer
from edge_export.weights import DecoderWeights
from edge_tools.prose import python_reference
from edge_tools.reference_llama import ReferenceLlama
from support.tiny_gguf import write_tiny_gguf

from edge_runtime.bundle import read_manifest

WINDOWS = [np.random.default_rng(i).integers(0, 250, n) for i, n in enumerate((33, 20, 7))]
LAYER_ROLES = ("query", "key", "value", "attention_output", "gate", "up", "down")


class Walk:
    """A tiny file, open, and a calibration of it."""

    def __init__(self, source: Path, checkpoint: Any) -> None:
        self.spec = read_spec(checkpoint)
        self.source = SourceWeights(self.spec, checkpoint)
        self.layers_done: list[int] = []
        self.calibration = Calibration(
            self.spec, self.source, WINDOWS, on_layer=self.layers_done.append
        )
        self.weights = DecoderWeights(
            self.source, "int4", calibration=self.calibration, on_tensor=lambda _: None
        )
        self.reference = ReferenceLlama.open(source)

    def pass_all_layers(self) -> None:
        self.weights.matrix("embedding")
        for layer in range(self.spec.layers):
            for role in LAYER_ROLES:
                self.weights.matrix(role, layer)


@contextmanager
def walk(folder: Path, **variant: Any) -> Iterator[Walk]:
    source = folder / "tiny.gguf"
    write_tiny_gguf(source, **variant)
    with open_gguf(source) as checkpoint:
        yield Walk(source, checkpoint)


def reference_moments(reference: ReferenceLlama) -> np.ndarray:
    states = np.concatenate([reference.hidden([int(t) for t in w]) for w in WINDOWS])
    return states.T @ states


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "biases": {"biases": True},
    "one kv head": {"kv_heads": 1},
    "partial rotary": {
        "heads": 2,
        "kv_heads": 1,
        "extra_metadata": {"llama.rope.dimension_count": 16},
    },
    "another base": {"extra_metadata": {"llama.rope.freq_base": 500000.0}},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_shared_table_is_calibrated_on_the_final_states_of_the_source(tmp_path, variant):
    with walk(tmp_path, kind="Q4_1", **VARIANTS[variant]) as w:
        moments = w.calibration.moments("embedding")
        assert moments is not None and moments.drift is None
        expected = reference_moments(w.reference)
        assert np.abs(moments.second - expected).max() < 1e-3 * np.abs(expected).max()
        assert moments.tokens == sum(map(len, WINDOWS))
        assert w.layers_done == [1, 2]


def test_weights_that_carry_exactly_leave_no_drift_and_the_states_of_the_source(tmp_path):
    with walk(tmp_path, kind="Q4_0", tied=False, biases=True) as w:
        assert w.calibration.moments("embedding") is None
        w.pass_all_layers()
        moments = w.calibration.moments("head")
        assert moments is not None and moments.drift is not None
        expected = reference_moments(w.reference)
        assert np.abs(moments.second - expected).max() < 1e-3 * np.abs(expected).max()
        assert np.abs(moments.drift).max() < 1e-4 * np.abs(expected).max()
        assert {s.stored_as for role, s in w.weights.stats} == {"4-bit block 32"}


def test_later_layers_see_the_quantized_states_and_how_far_they_drifted(tmp_path):
    with walk(tmp_path, kind="F32", tied=False) as w:
        w.pass_all_layers()
        moments = w.calibration.moments("head")
        assert moments is not None and moments.drift is not None
        expected = reference_moments(w.reference)
        difference = np.linalg.norm(moments.second - expected) / np.linalg.norm(expected)
        assert 1e-3 < difference < 0.5
        assert np.linalg.norm(moments.drift) > 1e-3 * np.linalg.norm(expected)


def test_matrices_that_read_one_input_share_its_moments(tmp_path):
    with walk(tmp_path, kind="Q4_1") as w:
        w.weights.matrix("embedding")
        query = w.calibration.moments("query")
        w.weights.matrix("query", 0)
        assert w.calibration.moments("key") is query
        w.weights.matrix("key", 0)
        w.weights.matrix("value", 0)
        assert w.calibration.moments("attention_output") is not query


def test_moments_choose_larger_blocks_and_none_the_search(tmp_path):
    with walk(tmp_path, kind="Q4_1", ffn=192) as w:
        w.weights.matrix("embedding")
        tensor = w.source.tensor("gate", 0)
        moments = w.calibration.moments("query")
        calibrated, _ = quantize_tensor(tensor, recipe="int4", moments=moments)
        searched, _ = quantize_tensor(tensor, recipe="int4")
        assert (calibrated.block_size, searched.block_size) == (64, 32)


def test_an_export_to_4_bits_says_how_it_was_made_and_is_the_same_each_time(tmp_path):
    source = tmp_path / "tiny.gguf"
    write_tiny_gguf(source, kind="Q4_1")
    stages: list[str] = []

    def progress(step: ExportProgress) -> None:
        assert 0 <= step.done_bytes <= step.total_bytes
        stages.append(step.stage)

    for name in ("a", "b"):
        export_model(source, tmp_path / name, ExportOptions(quant="int4"), progress)
    first, second = (read_manifest(tmp_path / name) for name in ("a", "b"))
    assert first.quantization.method == "gptq, block 64"
    assert first.files["decoder.weights"] == second.files["decoder.weights"]
    assert "calibrating" in stages
    by_name = {g.name: g for g in first.quantization.groups}
    assert by_name["embedding"].stored_as.startswith("4-bit")
    assert 0 < by_name["down"].relative_error < 0.3


def test_an_export_may_go_without_calibration(tmp_path):
    source = tmp_path / "tiny.gguf"
    write_tiny_gguf(source, kind="Q4_1")
    options = ExportOptions(quant="int4", calibrate=False)
    manifest = export_model(source, tmp_path / "bundle", options).manifest
    assert manifest.quantization.method is None
    by_name = {g.name: g.stored_as for g in manifest.quantization.groups}
    assert by_name["gate"] == "4-bit block 32 with zero points"
    assert by_name["embedding"].startswith("8-bit")


def test_the_text_is_not_the_one_that_quality_is_measured_on():
    measured = python_reference().text
    lines = [line for line in calibration_text().splitlines() if len(line) > 40]
    assert len(lines) > 50
    assert not [line for line in lines if line in measured]


def test_windows_fit_the_context_and_begin_as_the_model_wants(tmp_path):
    source = tmp_path / "tiny.gguf"
    write_tiny_gguf(source)
    with open_gguf(source) as checkpoint:
        tokenizer = build_tokenizer(checkpoint.metadata).tokenizer_json
    plain = calibration_windows(tokenizer, begin_token_id=None, context_length=8192)
    assert max(map(len, plain)) == 512
    assert sum(map(len, plain)) == 1024
    short = calibration_windows(tokenizer, begin_token_id=7, context_length=100)
    assert max(map(len, short)) == 100
    assert all(w[0] == 7 for w in short)
    assert np.array_equal(np.concatenate([w[1:] for w in short]), np.concatenate(plain))


def test_of_inputs_that_are_too_wide_only_the_squares_are_kept(tmp_path: Path) -> None:
    with walk(tmp_path, kind="F32") as w:
        narrow = Calibration(w.spec, w.source, WINDOWS, widest=64, on_layer=lambda _: None)
        weights = DecoderWeights(w.source, "int4", calibration=narrow, on_tensor=lambda _: None)
        weights.matrix("embedding")
        w.weights.matrix("embedding")
        for role in LAYER_ROLES:
            found, whole = narrow.moments(role), w.calibration.moments(role)
            assert whole is not None and found is not None
            np.testing.assert_allclose(found.importance, whole.importance, rtol=1e-4)
            assert isinstance(found, Moments) == (role != "down")
            w.weights.matrix(role, 0)
            if role != "down":
                # Both walk on with the same weights.
                weights.matrix(role, 0)
