"""Which provider is chosen on machines that are not here, and what is said about the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.fake_onnxruntime import Script, module
from support.simulated_machine import JETSON, simulated

from edge_runtime.bundle import GraphEntry
from edge_runtime.errors import InvalidParameterError, ProviderError, UnknownProviderError
from edge_runtime.providers.facts import Facts
from edge_runtime.providers.select import (
    Chosen,
    ProviderRequest,
    first_that_runs,
    graph_for,
    parse_request,
    requests_for,
)
from edge_runtime.providers.session import (
    OpenedSession,
    SessionOptions,
    open_session,
    require_provider,
)
from edge_runtime.providers.threads import ThreadPlan

CPU, CUDA, TRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"
WEBGPU, OPENVINO = "WebGpuExecutionProvider", "OpenVINOExecutionProvider"
CUDA_LIBRARIES = ("libcudart.so.12", "libcublasLt.so.12", "libcudnn.so.9")
ALL = GraphEntry(
    "decoder.onnx", ("w",), "fused", "auto", (CPU, CUDA, TRT, WEBGPU, OPENVINO), "1.23"
)

Choose = Callable[..., Chosen[OpenedSession]]


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch, script: Script, tmp_path: Path) -> Choose:
    """Select as the engine does, on a scripted onnxruntime and simulated facts."""
    graph = tmp_path / "decoder.onnx"

    def run(facts: Facts, *asked: str, graphs: tuple[GraphEntry, ...] = (ALL,)) -> Chosen:
        monkeypatch.setitem(__import__("sys").modules, "onnxruntime", module(script))
        from edge_runtime.providers.ort import onnxruntime

        onnxruntime.cache_clear()

        def find(provider: str) -> GraphEntry:
            return graph_for(graphs, provider, dialects=("fused",), where="bundle")

        def open_graph(entry: GraphEntry, request: ProviderRequest) -> OpenedSession:
            options = SessionOptions(ThreadPlan(2, (), ""), request.name, request.options)
            return open_session(graph, options, facts)

        requests = requests_for(asked, script.available, graphs)
        return first_that_runs(
            requests, lambda name: require_provider(name, facts), find, open_graph
        )

    return run


def on_all(script: Script, *providers: str) -> None:
    script.available = script.starts = (*providers, CPU)
    script.nodes = {providers[0]: ["MatMulNBits"] * 180 + ["Mul"] * 120}


def test_jetson_with_cuda_takes_it(choose: Choose, script: Script, tmp_path: Path) -> None:
    on_all(script, CUDA)
    jetson = simulated(tmp_path, board=JETSON, architecture="aarch64")
    chosen = choose(jetson, "cuda", "cpu")
    assert (chosen.request.name, chosen.steps_down) == (CUDA, ())
    assert (
        str(chosen.opened.assignment)
        == "300 of 300 nodes, 180 of 180 matrix products and attentions"
    )


def test_jetson_with_tensorrt_takes_it_first(
    choose: Choose, script: Script, tmp_path: Path
) -> None:
    on_all(script, TRT, CUDA)
    jetson = simulated(tmp_path, board=JETSON, architecture="aarch64")
    chosen = choose(jetson, "tensorrt:trt_fp16_enable=1", "cuda", "cpu")
    assert chosen.request == ProviderRequest(TRT, (("trt_fp16_enable", "1"),))
    ((_, _, arguments),) = script.opened
    assert arguments["provider_options"] == [{"trt_fp16_enable": "1"}]


def test_jetson_without_tensorrts_libraries_falls_to_cuda_and_names_them(
    choose: Choose, script: Script, tmp_path: Path
) -> None:
    script.available, script.starts = (TRT, CUDA, CPU), (CUDA, CPU)
    script.nodes = {CUDA: ["MatMulNBits"]}
    jetson = simulated(tmp_path, board=JETSON, architecture="aarch64", libraries=CUDA_LIBRARIES)
    chosen = choose(jetson, "tensorrt", "cuda", "cpu")
    assert chosen.request.name == CUDA
    (step,) = chosen.steps_down
    assert step.provider == TRT
    assert "did not start" in step.reason and "libnvinfer.so.10 cannot be loaded" in step.reason
    assert "libcudnn" not in step.reason


def test_jetson_with_a_plain_onnxruntime_is_told_of_the_boards_own_wheel(
    choose: Choose, script: Script, tmp_path: Path
) -> None:
    jetson = simulated(tmp_path, board=JETSON, architecture="aarch64")
    chosen = choose(jetson, "cuda", "cpu")
    assert chosen.request.name == CPU
    (step,) = chosen.steps_down
    assert "not in this onnxruntime 1.23.2" in step.reason
    assert "JetPack" in str(step.cure)


def test_a_plugin_that_offers_no_device_steps_down_and_says_the_machine_has_none(
    choose: Choose, script: Script, tmp_path: Path
) -> None:
    script.plugins = {"webgpu.so": []}
    laptop = simulated(tmp_path, battery=True, plugins={"onnxruntime_ep_webgpu": Path(__file__)})
    script.plugins = {__file__: []}
    chosen = choose(laptop, "webgpu", "cpu")
    assert chosen.request.name == CPU
    (step,) = chosen.steps_down
    assert "offers no device on this machine" in step.reason
    assert "no GPU" in str(step.cure)


def test_a_plugin_with_devices_is_given_its_gpu(
    choose: Choose, script: Script, tmp_path: Path
) -> None:
    script.plugins = {__file__: [(OPENVINO, "cpu"), (OPENVINO, "gpu"), (OPENVINO, "npu")]}
    script.starts = (OPENVINO, CPU)
    script.nodes = {OPENVINO: ["MatMulNBits"]}
    laptop = simulated(
        tmp_path,
        pci={"drm/card0": "0x8086"},
        plugins={"onnxruntime_ep_openvino": Path(__file__)},
    )
    chosen = choose(laptop, "openvino:cache_dir=x")
    assert chosen.request.name == OPENVINO
    ((_, options, arguments),) = script.opened
    assert [str(d.device.type) for d in options.devices] == ["OrtHardwareDeviceType.GPU"]
    assert options.device_options == {"cache_dir": "x", "num_of_threads": "2"}
    assert "providers" not in arguments


def test_a_plugin_whose_library_is_missing_is_broken_not_absent(
    choose: Choose, script: Script, tmp_path: Path
) -> None:
    laptop = simulated(tmp_path, plugins={"onnxruntime_ep_webgpu": tmp_path / "gone.so"})
    with pytest.raises(ProviderError, match=r"plugin of WebGpu.* does not load: .*gone\.so"):
        choose(laptop, "webgpu")


def test_a_provider_that_starts_and_then_fails_steps_down(
    choose: Choose, script: Script, tmp_path: Path
) -> None:
    on_all(script, CUDA)
    script.errors = {CUDA: RuntimeError("CUDA failure 2: out of memory ; GPU=0\n at line 9")}
    chosen = choose(simulated(tmp_path, nvidia=True, libraries=CUDA_LIBRARIES), "cuda", "cpu")
    assert chosen.request.name == CPU
    (step,) = chosen.steps_down
    assert "out of memory" in step.reason and "\n" not in step.reason


def test_a_provider_that_takes_three_nodes_of_three_hundred_is_not_taken(
    choose: Choose, script: Script, tmp_path: Path
) -> None:
    on_all(script, CUDA)
    script.nodes = {CUDA: ["MatMulNBits"] * 3, CPU: ["MatMulNBits"] * 177 + ["Mul"] * 120}
    chosen = choose(simulated(tmp_path, nvidia=True), "cuda", "cpu")
    assert chosen.request.name == CPU
    (step,) = chosen.steps_down
    assert "took only 3 of 300 nodes, 3 of 180 matrix products" in step.reason
    assert "177 MatMulNBits" in str(step.cure)


def test_nodes_that_are_many_and_light_do_not_make_up_for_the_products(
    choose: Choose, script: Script, tmp_path: Path
) -> None:
    on_all(script, CUDA)
    script.nodes = {CUDA: ["Mul"] * 290, CPU: ["MatMulNBits"] * 10}
    with pytest.raises(ProviderError, match="took only 290 of 300 nodes, 0 of 10 matrix"):
        choose(simulated(tmp_path, nvidia=True), "cuda")


def old_graph(folder: Path, operators: list[str]) -> None:
    """A ModelProto of those nodes: field 7 is the graph, 1 a node, 4 its operator."""

    def part(number: int, data: bytes) -> bytes:
        size, length = len(data), b""
        while size > 0x7F:
            length += bytes([size & 0x7F | 0x80])
            size >>= 7
        return bytes([number << 3 | 2]) + length + bytes([size]) + data

    nodes = b"".join(part(1, part(4, name.encode())) for name in operators)
    (folder / "decoder.onnx").write_bytes(part(7, nodes))


@pytest.mark.parametrize(
    "left, taken", [(["GatherBlockQuantized"], True), (["MatMulNBits"] * 9 + ["Mul"], False)]
)
def test_an_onnxruntime_that_cannot_tell_is_profiled(
    choose: Choose, script: Script, tmp_path: Path, left: list[str], taken: bool
) -> None:
    script.available = script.starts = (OPENVINO, CPU)
    old_graph(tmp_path, ["GatherBlockQuantized", "Mul", *["MatMulNBits"] * 10])
    script.profiled = {CPU: left, OPENVINO: ["OpenVINO-EP-subgraph_1"]}
    chosen = choose(simulated(tmp_path), "openvino", "cpu")
    assert (chosen.request.name == OPENVINO) is taken
    if taken:
        assert chosen.opened.assignment is not None
        assert str(chosen.opened.assignment).startswith("11 of 12 nodes, 10 of 10")
        assert chosen.opened.assignment.elsewhere == (("GatherBlockQuantized", 1),)
    else:
        assert "2 of 12 nodes, 1 of 10" in chosen.steps_down[0].reason


def test_a_step_that_fails_while_it_is_profiled_is_a_step_down(
    choose: Choose, script: Script, tmp_path: Path
) -> None:
    script.available = script.starts = (OPENVINO, CPU)
    script.step_error = RuntimeError("no kernel for this shape")
    chosen = choose(simulated(tmp_path), "openvino", "cpu")
    assert "started and failed in a step: no kernel" in chosen.steps_down[0].reason


def test_one_provider_alone_is_strict(choose: Choose, script: Script, tmp_path: Path) -> None:
    with pytest.raises(ProviderError, match=f"{CUDA} is not in this onnxruntime") as caught:
        choose(simulated(tmp_path), "cuda")
    assert "no NVIDIA GPU" in str(caught.value.hint)
    with pytest.raises(ProviderError) as caught:
        choose(simulated(tmp_path / "b", nvidia=True), "cuda")
    assert caught.value.hint == "pip install 'onnxruntime-gpu[cuda,cudnn]'"


def test_where_none_runs_every_reason_is_told(
    choose: Choose, script: Script, tmp_path: Path
) -> None:
    with pytest.raises(ProviderError) as caught:
        choose(simulated(tmp_path), "cuda", "directml")
    assert CUDA in caught.value.message and "DmlExecutionProvider" in caught.value.message


def test_a_provider_of_another_system_is_not_recommended(
    choose: Choose, script: Script, tmp_path: Path
) -> None:
    with pytest.raises(ProviderError) as caught:
        choose(simulated(tmp_path), "directml")
    assert "exists for windows only" in str(caught.value.hint)


def test_a_bundle_without_a_graph_for_it_says_how_to_export_one(
    choose: Choose, script: Script, tmp_path: Path
) -> None:
    on_all(script, CUDA)
    only_cpu = GraphEntry("decoder.onnx", ("w",), "fused", "auto", (CPU,), "1.23")
    with pytest.raises(ProviderError, match=f"no graph for {CUDA}; it has fused for CPU") as caught:
        choose(simulated(tmp_path), "cuda", graphs=(only_cpu,))
    assert "edge-runtime export MODEL --target" in str(caught.value.hint)


def test_unasked_a_plain_build_takes_the_cpu_and_asks_nothing(
    choose: Choose, script: Script, tmp_path: Path
) -> None:
    def ask(*_: object) -> str:
        raise AssertionError("nobody needs to know")

    facts = Facts(root=tmp_path, run=ask, find_plugin=ask, load_library=ask)  # type: ignore[arg-type]
    chosen = choose(facts)
    assert (chosen.request.name, chosen.steps_down) == (CPU, ())


def test_unasked_a_provider_is_taken_that_the_build_has_and_the_bundle_is_for(
    choose: Choose, script: Script, tmp_path: Path
) -> None:
    on_all(script, CUDA)
    assert choose(simulated(tmp_path, nvidia=True)).request.name == CUDA
    # OpenVINO may be slower than the CPU's own kernels: it is taken where it is asked for.
    on_all(script, OPENVINO)
    assert choose(simulated(tmp_path)).request.name == CPU


def test_unasked_a_gpu_build_without_its_driver_warns_and_runs_on_the_cpu(
    choose: Choose, script: Script, tmp_path: Path
) -> None:
    script.available = (CUDA, CPU)
    script.nodes = {}
    chosen = choose(simulated(tmp_path))
    assert chosen.request.name == CPU
    assert "libcudart.so.12 or libcudart.so.13" in chosen.steps_down[0].reason


@pytest.mark.parametrize("name", ["cuda", "CUDA", "CUDAExecutionProvider", "cudaexecutionprovider"])
def test_names_are_known_in_any_case_and_short(name: str) -> None:
    assert parse_request(name) == ProviderRequest(CUDA)


def test_a_value_may_hold_a_colon() -> None:
    request = parse_request(r"qnn:backend_path=C:\qnn\QnnHtp.dll:soc_model=60")
    assert request.options == (("backend_path", r"C:\qnn\QnnHtp.dll"), ("soc_model", "60"))


def test_an_unknown_name_gets_near_ones() -> None:
    with pytest.raises(UnknownProviderError, match="'cudda'") as caught:
        parse_request("cudda")
    assert "did you mean cuda?" in str(caught.value.hint)
    with pytest.raises(UnknownProviderError) as caught:
        parse_request("")
    assert "known: " in str(caught.value.hint)


def test_an_option_without_a_value_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="'device_type'"):
        parse_request("openvino:device_type")
