from __future__ import annotations

import pytest

from edge_runtime.providers.catalog import load_providers, other_than_cpu
from edge_runtime.providers.plugins import find_plugin

PROVIDERS = load_providers().providers


def test_every_promised_provider_is_known() -> None:
    short = {provider.short_name for provider in PROVIDERS}
    assert short == {
        "tensorrt-rtx", "tensorrt", "cuda", "qnn", "coreml", "directml", "webgpu", "migraphx",
        "rocm", "cann", "openvino", "nnapi", "xnnpack", "cpu",
    }  # fmt: skip


def test_no_name_is_given_twice() -> None:
    names = [n.lower() for p in PROVIDERS for n in (p.name, *p.short_names)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda p: p.short_name)
def test_an_entry_is_of_the_words_that_are_used(provider) -> None:
    assert provider.name.endswith("ExecutionProvider")
    assert set(provider.devices) <= {"cpu", "gpu", "npu"} and provider.devices
    assert set(provider.dialects) <= {"fused", "portable"} and provider.dialects
    assert provider.precision in {"float32", "float16", "int8"}
    assert set(provider.systems) <= {"linux", "windows", "darwin", "android", "ios", "browser"}
    assert {package.kind for package in provider.packages} <= {"build", "plugin"}
    assert provider.install


def test_the_cpu_comes_last_and_a_service_is_no_provider() -> None:
    assert PROVIDERS[-1].short_name == "cpu"
    assert other_than_cpu(["AzureExecutionProvider", "CPUExecutionProvider"]) == []
    assert other_than_cpu(["CUDAExecutionProvider", "CPUExecutionProvider"]) == [
        "CUDAExecutionProvider"
    ]


def package(monkeypatch: pytest.MonkeyPatch, tmp_path, source: str):
    (tmp_path / "onnxruntime_ep_webgpu.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "onnxruntime_ep_webgpu", raising=False)
    plugin = load_providers().find("webgpu").plugin
    assert plugin is not None
    return find_plugin(plugin)


def test_a_plugin_package_says_where_its_library_is(monkeypatch, tmp_path) -> None:
    found = package(monkeypatch, tmp_path, "def get_library_path(): return __file__\n")
    assert found.path == tmp_path / "onnxruntime_ep_webgpu.py"
    assert found.problem is None


@pytest.mark.parametrize(
    "source, words",
    [
        ("raise OSError('wrong ELF class')", "wrong ELF class"),
        ("", "get_library_path"),
        ("def get_library_path(): return '/none/lib.so'", "/none/lib.so does not exist"),
        ("def get_library_path(): raise RuntimeError('found 0')", "found 0"),
    ],
)
def test_a_broken_plugin_package_is_told_from_none(monkeypatch, tmp_path, source, words) -> None:
    found = package(monkeypatch, tmp_path, source)
    assert found.path is None
    assert words in found.problem


def test_a_package_that_is_not_installed_is_none() -> None:
    plugin = load_providers().find("tensorrt-rtx").plugin
    assert plugin is not None
    assert find_plugin(plugin) is None
