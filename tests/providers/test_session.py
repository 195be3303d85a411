from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.fake_onnxruntime import Script, module
from support.simulated_machine import simulated

from edge_runtime.errors import ProviderError
from edge_runtime.providers.session import SessionOptions, open_session
from edge_runtime.providers.threads import ThreadPlan

GRAPH = Path("model") / "decoder.onnx"
ONE_THREAD = ThreadPlan(1, (), "test")
CUDA = "CUDAExecutionProvider"


def test_a_session_opens_on_exactly_the_provider_asked_for(script: Script) -> None:
    session = open_session(GRAPH, SessionOptions(ONE_THREAD))
    assert session.ort_session.get_providers() == ["CPUExecutionProvider"]
    ((path, _, arguments),) = script.opened
    assert path == str(GRAPH)
    assert arguments["providers"] == ["CPUExecutionProvider"]


def test_no_fallback_is_left_to_onnxruntime(script: Script) -> None:
    open_session(GRAPH, SessionOptions(ONE_THREAD))
    ((_, _, arguments),) = script.opened
    assert arguments["enable_fallback"] == 0
    assert script.fallback_disabled == 1


def test_a_provider_that_is_not_in_the_build_is_refused_with_a_cure(
    script: Script, tmp_path: Path
) -> None:
    with pytest.raises(ProviderError, match=f"{CUDA} is not in this onnxruntime 1.23.2") as caught:
        open_session(GRAPH, SessionOptions(ONE_THREAD, CUDA), simulated(tmp_path))
    assert "no NVIDIA GPU" in str(caught.value.hint)
    assert not script.opened


def test_a_silent_fallback_to_the_cpu_is_an_error(script: Script) -> None:
    script.available = (CUDA, "CPUExecutionProvider")
    with pytest.raises(ProviderError, match=f"{CUDA} did not start"):
        open_session(GRAPH, SessionOptions(ONE_THREAD, CUDA))


def test_a_provider_that_starts_is_kept(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    script.available = script.starts = (CUDA, "CPUExecutionProvider")
    script.nodes = {CUDA: ["MatMulNBits"]}
    monkeypatch.setitem(sys.modules, "onnxruntime", module(script))
    opened = open_session(GRAPH, SessionOptions(ONE_THREAD, CUDA))
    assert CUDA in opened.ort_session.get_providers()


@pytest.mark.parametrize("error", [RuntimeError, ValueError, Exception])
def test_whatever_opening_raises_is_one_line_that_names_graph_and_provider(
    script: Script, error: type[Exception]
) -> None:
    script.error = error("[ONNXRuntimeError] : 1 : FAIL : not a known op\n  at line 7")
    with pytest.raises(ProviderError, match=r"decoder\.onnx.*not a known op") as caught:
        open_session(GRAPH, SessionOptions(ONE_THREAD))
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("CPUExecutionProvider")
    assert caught.value.__cause__ is script.error


def test_threads_are_as_planned(script: Script) -> None:
    open_session(GRAPH, SessionOptions(ThreadPlan(3, (), "test")))
    ((_, options, _),) = script.opened
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (3, 1)
    assert options.entries == {}


def test_the_pools_own_threads_are_placed_counting_processors_from_one(script: Script) -> None:
    """The caller's thread is the first; the pool has one fewer than the plan."""
    open_session(GRAPH, SessionOptions(ThreadPlan(3, (4, 5, 7), "test")))
    ((_, options, _),) = script.opened
    assert options.entries == {"session.intra_op_thread_affinities": "6;8"}


def test_a_real_session_refuses_what_is_no_graph(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    file = tmp_path / "decoder.onnx"
    file.write_bytes(b"this is no graph")
    with pytest.raises(ProviderError, match=r"decoder\.onnx"):
        open_session(file, SessionOptions(ONE_THREAD))
    assert capfd.readouterr().out == "", "standard output belongs to the answer"
