"""The check of a provider, run with the CPU provider in the other's place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from edge_export.pipeline import ExportOptions, export_model
from edge_export.portable_graphs import PortableRequest
from edge_tools.gpu_check import Answer, main, ready_providers
from support.tiny_gguf import write_tiny_gguf


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("check")
    write_tiny_gguf(folder / "tiny.gguf", kind="Q8_0")
    options = ExportOptions(portable=(PortableRequest(("CUDAExecutionProvider",)),))
    return export_model(folder / "tiny.gguf", folder / "bundle", options).bundle_path


def test_the_cpu_agrees_with_itself(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--provider", "cpu", "--tokens", "4", "--turns", "1", "--threads", "1", "--json"]
    assert main([str(bundle), *asked, "--memory-cap", "4G"]) == 0
    (check,) = json.loads(capsys.readouterr().out)
    assert check["divergence"] == pytest.approx(0, abs=1e-9)
    assert check["top_agreement"] == 1.0
    assert [answer["same_tokens"] for answer in check["answers"]] == [4, 4, 4]
    assert "resident under 4000 MB" in check["memory_cap"]


def test_a_provider_that_is_not_here_is_one_line(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(bundle), "--provider", "directml"]) == 1
    assert capsys.readouterr().err.startswith("error: DmlExecutionProvider is not in this")


def test_where_nothing_else_is_ready_it_says_so(
    bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_tools.gpu_check.ready_providers", lambda bundle: [])
    assert main([str(bundle)]) == 1
    assert "edge-runtime doctor" in capsys.readouterr().err


def test_the_cpu_is_not_compared_with_itself_unasked(bundle: Path) -> None:
    assert "cpu" not in ready_providers(bundle)


@pytest.mark.parametrize("gap, agrees", [(None, True), (0.2, True), (3.0, False)])
def test_parting_at_a_near_tie_is_agreement(gap: float | None, agrees: bool) -> None:
    assert Answer("?", 3, 8, gap).agrees is agrees
