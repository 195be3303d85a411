"""The tools' command lines on a tiny model: export on first use, measure, print."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.tiny_gguf import write_tiny_gguf

pytest.importorskip("onnxruntime", reason="the tools run the engine")

KEYS = {
    "prefill_512", "prefill_2048", "decode_0", "decode_512", "decode_1500", "ttft_ms", "load_s",
    "first_token_s", "peak_rss_mb", "peak_anonymous_mb",
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_tiny_gguf(file, kind="Q8_0", extra_metadata={"llama.context_length": 4096})
    return file


def tool(module: str, *arguments: object, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"edge_tools.{module}", *map(str, arguments)],
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        env={**os.environ, "EDGE_RUNTIME_HOME": str(home)},
    )  # fmt: skip


def test_bench_prints_every_figure_and_the_machine_as_json_alone(model: Path, tmp_path: Path):
    result = tool("bench", model, "--json", "--rounds", 1, "--quant", "int8", home=tmp_path)
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout)
    assert set(figures) >= KEYS
    linux = Path("/proc/self/status").exists()
    for key in KEYS:
        if linux or not key.startswith("peak"):
            assert figures[key] > 0, key
    assert figures["recipe"] == "int8"
    assert figures["rounds"] == 1
    assert {"cpu", "threads", "onnxruntime", "model"} <= set(figures)
    assert "round 1 of 1" in result.stderr


def test_evaluate_finds_the_eight_bit_export_close_to_its_source(model: Path, tmp_path: Path):
    result = tool("evaluate", model, "--json", "--tokens", 300, "--window", 100, home=tmp_path)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["tokens"] == 300
    assert found["kl"] < 0.01
    assert found["top_1"] > 0.9
    assert found["perplexity"] == pytest.approx(found["reference_perplexity"], rel=0.05)


@pytest.mark.parametrize("module", ["bench", "evaluate"])
def test_an_unknown_model_is_one_line_and_a_hint(module: str, tmp_path: Path):
    result = tool(module, "no-such-model", home=tmp_path)
    assert result.returncode == 1
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
