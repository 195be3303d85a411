from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest
from support.fake_onnxruntime import Script, module

from edge_runtime.errors import ProviderError
from edge_runtime.providers.ort import first_line, onnxruntime, require_version, version_tuple

SWITCHES = ("ORT_DISABLE_TELEMETRY", "ORT_TELEMETRY_DISABLED")


def install_source(monkeypatch: pytest.MonkeyPatch, folder: Path, source: str) -> None:
    """A package named onnxruntime that runs ``source`` when it is imported."""
    package = folder / "onnxruntime"
    package.mkdir()
    (package / "__init__.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # so that its end is undone as well
    del sys.modules["onnxruntime"]


def test_with_none_installed_the_hint_names_the_extras(
    monkeypatch: pytest.MonkeyPatch, fresh_import: None
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # as if there were no such package
    with pytest.raises(ProviderError, match="no onnxruntime is installed") as caught:
        onnxruntime()
    assert "edge-runtime[cpu]" in str(caught.value.hint)
    assert "[gpu]" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise ImportError('libcudart.so.12: cannot open\\nmore lines')", "libcudart.so.12"),
        ("raise AttributeError('_ARRAY_API not found')", "_ARRAY_API"),
        ("raise OSError('wrong ELF class')", "wrong ELF class"),
        ("import a_module_that_it_needs", "a_module_that_it_needs"),
        ("this is no python", "invalid syntax"),
    ],
)
def test_one_that_does_not_load_is_one_line_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, fresh_import: None, tmp_path: Path, source: str, words: str
) -> None:
    install_source(monkeypatch, tmp_path, source)
    with pytest.raises(ProviderError, match=words) as caught:
        onnxruntime()
    assert "cannot be loaded" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_empty_folder_of_an_uninstalled_distribution_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, fresh_import: None, tmp_path: Path
) -> None:
    install_source(monkeypatch, tmp_path, "")
    with pytest.raises(ProviderError, match="installed in part"):
        onnxruntime()


@pytest.mark.parametrize("version", ["1.22.1", "0.5", "1.9.0", "unknown"])
def test_one_that_is_too_old_is_refused_with_both_versions(script: Script, version: str) -> None:
    sys.modules["onnxruntime"].__version__ = version  # type: ignore[attr-defined]
    with pytest.raises(ProviderError, match=rf"{version} is too old: 1\.23") as caught:
        onnxruntime()
    assert "upgrade" in str(caught.value.hint)


@pytest.mark.parametrize("version", ["1.23", "1.23.0", "1.24.0.dev20250101+cpu", "2.0"])
def test_one_that_is_recent_enough_is_given(script: Script, version: str) -> None:
    sys.modules["onnxruntime"].__version__ = version  # type: ignore[attr-defined]
    assert onnxruntime() is sys.modules["onnxruntime"]


def test_a_failure_is_not_remembered(monkeypatch: pytest.MonkeyPatch, fresh_import: None) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ProviderError):
        onnxruntime()
    monkeypatch.setitem(sys.modules, "onnxruntime", module(Script()))
    assert onnxruntime().__version__ == "1.23.2"


def test_telemetry_is_off_when_the_module_is_imported(
    monkeypatch: pytest.MonkeyPatch, fresh_import: None, tmp_path: Path
) -> None:
    for name in SWITCHES:
        monkeypatch.setenv(name, "0")
    seen = "import os\nseen = [os.environ[n] for n in " + repr(SWITCHES) + "]\n"
    install_source(monkeypatch, tmp_path, seen + "class InferenceSession: pass\n__version__ = '9'")
    assert onnxruntime().seen == ["1", "1"]
    assert all(os.environ[name] == "1" for name in SWITCHES)


def test_what_a_graph_needs_is_compared_as_numbers(script: Script) -> None:
    require_version("1.9", "the graph")
    require_version("1.23", "the graph")
    with pytest.raises(ProviderError, match=r"the graph needs onnxruntime 1\.100 .* 1\.23\.2 is"):
        require_version("1.100", "the graph")


def test_versions_are_read_up_to_where_numbers_end() -> None:
    assert version_tuple("1.23.2") == (1, 23, 2)
    assert version_tuple("1.24.0rc1+cpu") == (1, 24, 0)
    assert version_tuple("main") == ()


def test_the_first_line_of_an_error() -> None:
    assert first_line(ValueError("\n one\ntwo")) == "one"
    assert first_line(ValueError()) == "ValueError"


def test_it_is_imported_where_no_ctrl_c_can_be_swallowed(
    monkeypatch: pytest.MonkeyPatch, fresh_import: None, tmp_path: Path
) -> None:
    source = """
import threading
__version__ = "1.30"
class InferenceSession: ...
thread = threading.current_thread()
"""
    install_source(monkeypatch, tmp_path, source)
    assert onnxruntime().thread is not threading.main_thread()
