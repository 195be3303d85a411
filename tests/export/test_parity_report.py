"""The parity report: what it says of logits, and of bundles of known quality."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from edge_export.architectures.registry import read_spec
from edge_export.parity import ParityReport, compare_logits, source_logits, verify
from edge_export.pipeline import ExportOptions, export_model
from edge_export.source_weights import SourceWeights
from edge_export.sources.hugging_face import open_hugging_face
from support.golden import CASES, reference, relative_difference, write_checkpoint

pytest.importorskip("onnxruntime")


def test_equal_logits_are_equal_in_every_word() -> None:
    logits = np.random.default_rng(0).standard_normal((5, 40)).astype(np.float32) * 4
    report = compare_logits(logits, logits.copy())
    assert (report.tokens, report.max_difference, report.kl) == (5, 0.0, 0.0)
    assert report.argmax_agreement == report.clear_agreement == 1.0
    assert report.cosine == pytest.approx(1.0)


def test_what_differs_is_measured_and_near_ties_are_told_apart() -> None:
    expected = np.array([[4.0, 0.0, 0.0], [2.0, 1.95, 0.0], [0.0, 8.0, 0.0]], np.float32)
    found = np.array([[4.0, 0.0, 0.0], [1.95, 2.0, 0.0], [8.0, 0.0, 0.0]], np.float32)
    report = compare_logits(expected, found)
    assert report.max_difference == 1.0
    assert report.near_ties == 1
    assert report.argmax_agreement == pytest.approx(1 / 3)
    assert report.clear_agreement == pytest.approx(1 / 2)
    p, q = (np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True) for x in (expected, found))
    assert report.kl == pytest.approx(float((p * np.log(p / q)).sum(axis=-1).mean()), rel=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_the_sources_own_logits_are_what_transformers_computes(case: str, tmp_path: Path) -> None:
    expected = reference(case)
    with open_hugging_face(write_checkpoint(case, tmp_path)) as checkpoint:
        spec = read_spec(checkpoint, expected.context_length)
        weights = SourceWeights(spec, checkpoint)
        prompt = np.array(expected.prompt, np.int64)
        found = source_logits(spec, weights, prompt, lambda _: None)
    assert relative_difference(found, expected.logits) < 1e-5


def test_more_bits_are_nearer_to_the_source(tmp_path: Path) -> None:
    source = write_checkpoint("qwen3", tmp_path)
    reports: list[ParityReport] = []
    for quant in ("f32", "int8", "int4"):
        bundle = export_model(source, tmp_path / quant, ExportOptions(quant=quant)).bundle_path
        reports.append(verify(bundle, source))
    exact, eight, four = reports
    assert exact.max_difference < 1e-5 and exact.argmax_agreement == 1.0
    assert exact.kl < eight.kl < four.kl
    assert exact.tokens == 256


@pytest.mark.parametrize("case", ["gemma3", "starcoder2", "olmo2", "smollm3", "granite", "phi3"])
def test_calibration_brings_every_family_nearer(case: str, tmp_path: Path) -> None:
    source = write_checkpoint(case, tmp_path)
    kl = []
    for calibrate in (True, False):
        options = ExportOptions(quant="int4", calibrate=calibrate)
        bundle = export_model(source, tmp_path / f"b{calibrate}", options).bundle_path
        kl.append(verify(bundle, source).kl)
    assert kl[0] < kl[1]
