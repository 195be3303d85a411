"""export of a Hugging Face directory, from the command line to a bundle that runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.golden import write_checkpoint

from edge_runtime.bundle import read_manifest
from edge_runtime.cli.main import main

pytest.importorskip("onnxruntime")


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGE_RUNTIME_HOME", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "store"


def test_a_directory_is_exported_verified_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A family without windows: onnxruntime 1.23 looks one token further back than they say.
    source = write_checkpoint("granite", tmp_path)
    assert main(["export", str(source), "-o", "bundle", "--verify"]) == 0
    out = capsys.readouterr().out
    assert "parity with the source in float32, over 256 tokens" in out
    assert "KL divergence" in out and out.endswith("\n\nbundle\n")
    assert main(["export", str(source), "--quant", "f32", "--verify", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["parity"]["max_difference"] < 1e-5
    assert Path(report["path"]).parent.name.startswith("granite-")


def test_a_directory_is_a_model_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_checkpoint("qwen3", tmp_path)
    asked = ["run", f"{source}:int8", "ab", "--raw", "--max-tokens", "3", "--temperature", "0"]
    assert main(asked) == 0
    assert "exporting qwen3" in capsys.readouterr().err
    assert main(asked) == 0
    assert "exporting" not in capsys.readouterr().err


def test_a_context_of_ones_own_goes_to_a_directory_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_checkpoint("phi3", tmp_path)
    assert main(["export", str(source), "-o", "short"]) == 0
    assert main(["export", str(source), "-o", "long", "--context", "200"]) == 0
    lengths = [read_manifest(Path(p)).dimensions.context_length for p in ("short", "long")]
    assert lengths == [112, 200]
    capsys.readouterr()
    assert main(["export", str(source), "--context", "200"]) == 2
    assert "-o DIR" in capsys.readouterr().err
    assert main(["export", str(source), "-o", "more", "--context", "300"]) == 1
    assert "the model reaches 256" in capsys.readouterr().err


def test_inspect_shows_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_checkpoint("qwen2", tmp_path)
    assert main(["inspect", str(source), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["kind"] == "safetensors" and shown["metadata"]["model_type"] == "qwen2"
    assert shown["tensors"]["model.embed_tokens.weight"]["shape"] == [272, 64]
