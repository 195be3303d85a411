"""What doctor is told of machines that are not here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.fake_onnxruntime import Script, module
from support.simulated_machine import JETSON, simulated

from edge_runtime.bundle import GraphEntry
from edge_runtime.providers.facts import Facts
from edge_runtime.providers.probe import Diagnosis, State, diagnose, foresee

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
CUDA_LIBRARIES = ("libcudart.so.12", "libcublasLt.so.12", "libcudnn.so.9")
FOR_CPU = GraphEntry("decoder.onnx", ("w",), "fused", "auto", (CPU,), "1.23")
FOR_CUDA = GraphEntry("decoder.fp16.onnx", ("w",), "fused", "float16", (CUDA,), "1.23")


def states(found: Diagnosis) -> dict[str, State]:
    return {state.short_name: state.state for state in found.providers}


def cure(found: Diagnosis, name: str) -> str:
    return str(next(state.cure for state in found.providers if state.short_name == name))


def test_a_plain_build_on_a_server_has_the_cpu_and_could_have_openvino(
    script: Script, tmp_path: Path
) -> None:
    found = diagnose(simulated(tmp_path))
    of = states(found)
    assert of["cpu"] is State.READY
    assert of["openvino"] is State.NOT_INSTALLED
    assert cure(found, "openvino") == "pip install onnxruntime-openvino"
    assert {of[n] for n in ("cuda", "qnn", "directml", "coreml", "webgpu")} == {State.NOT_HERE}
    assert found.tells_assignment is False


def test_a_jetson_needs_its_own_wheel(script: Script, tmp_path: Path) -> None:
    found = diagnose(simulated(tmp_path, board=JETSON, architecture="aarch64"))
    assert states(found)["cuda"] is State.NOT_INSTALLED
    assert "JetPack" in cure(found, "cuda")


def test_a_gpu_build_without_cudnn_is_incomplete(script: Script, tmp_path: Path) -> None:
    script.available = (CUDA, CPU)
    found = diagnose(simulated(tmp_path, nvidia=True, libraries=CUDA_LIBRARIES[:2]))
    state = next(s for s in found.providers if s.name == CUDA)
    assert (state.state, state.detail) == (State.INCOMPLETE, "libcudnn.so.9 cannot be loaded")
    assert "onnxruntime-gpu" in str(state.cure)


def test_a_gpu_build_on_a_machine_without_a_gpu_has_no_device(
    script: Script, tmp_path: Path
) -> None:
    script.available = (CUDA, CPU)
    found = diagnose(simulated(tmp_path, libraries=CUDA_LIBRARIES))
    assert states(found)["cuda"] is State.NO_DEVICE


@pytest.mark.parametrize("offered, state", [([], State.NO_DEVICE), (["gpu"], State.READY)])
def test_a_plugin_is_asked_for_its_devices(
    script: Script, tmp_path: Path, offered: list[str], state: State
) -> None:
    script.plugins = {__file__: [("WebGpuExecutionProvider", kind) for kind in offered]}
    facts = simulated(tmp_path, plugins={"onnxruntime_ep_webgpu": Path(__file__)})
    assert states(diagnose(facts))["webgpu"] is state


def test_a_plugin_that_does_not_load_is_incomplete(script: Script, tmp_path: Path) -> None:
    facts = simulated(tmp_path, plugins={"onnxruntime_ep_webgpu": tmp_path / "gone.so"})
    assert states(diagnose(facts))["webgpu"] is State.INCOMPLETE


def test_without_onnxruntime_the_machine_is_still_described(
    monkeypatch: pytest.MonkeyPatch, fresh_import: None, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    found = diagnose(simulated(tmp_path, nvidia=True))
    assert found.onnxruntime is None
    assert "no onnxruntime is installed" in str(found.problem)
    assert states(found)["cuda"] is State.NOT_INSTALLED
    assert found.machine.accelerators


def with_cuda(script: Script, folder: Path) -> Diagnosis:
    script.available = (CUDA, CPU)
    return diagnose(simulated(folder, nvidia=True, libraries=CUDA_LIBRARIES))


def test_what_a_model_would_get_follows_its_graphs(script: Script, tmp_path: Path) -> None:
    found = with_cuda(script, tmp_path)
    both = foresee([FOR_CPU, FOR_CUDA], found)
    assert (both.provider, both.graph, both.reason) == (CUDA, "decoder.fp16.onnx", "first choice")
    one = foresee([FOR_CPU], found, ["cuda", "cpu"])
    assert (one.provider, one.reason) == (CPU, "cuda: no graph for it in the bundle")
    assert foresee([FOR_CPU], found, ["cuda"]).provider is None


def test_the_reason_names_what_is_here_and_was_not_asked_for(
    monkeypatch: pytest.MonkeyPatch, script: Script, tmp_path: Path
) -> None:
    assert foresee([FOR_CPU], diagnose(simulated(tmp_path))).reason == (
        "nothing else in this onnxruntime"
    )
    script.available = ("OpenVINOExecutionProvider", CPU)
    monkeypatch.setitem(sys.modules, "onnxruntime", module(script))
    found = diagnose(simulated(tmp_path / "b"))
    assert foresee([FOR_CPU], found).reason == "asked for by name only: openvino"


def test_the_real_machine_can_be_asked() -> None:
    pytest.importorskip("onnxruntime")
    found = diagnose(Facts())
    assert states(found)["cpu"] is State.READY
    assert found.machine.architecture
