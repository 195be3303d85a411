"""The commands that work on the store and on files: pull, export, inspect, list, rm."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from edge_runtime.cli.main import main
from edge_runtime.errors import DownloadError, StorageError
from edge_runtime.store.progress import Notice, Progress


def _store_doubles() -> Any:
    """The doubles of the store's tests, from beside them."""
    path = Path(__file__).parent.parent / "store" / "store_doubles.py"
    spec = importlib.util.spec_from_file_location("store_doubles", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault("store_doubles", module)
    spec.loader.exec_module(module)
    return module


doubles = _store_doubles()


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "store"
    monkeypatch.setenv("EDGE_RUNTIME_HOME", str(root))
    doubles.use_tiny_catalog(monkeypatch)
    monkeypatch.chdir(tmp_path)
    return root


def put_download(store: Path) -> Path:
    path = store / "downloads" / "catalog" / "tiny-1m" / "Tiny.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(doubles.CONTENT)
    return path


# pull


def test_pull_prints_the_path_and_tells_the_rest_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path
):
    def pull(model: str, *, report: Any) -> Path:
        report(Notice(f"{model}: 10 MB, licence mit"))
        report(Progress("downloading", 5, 10))
        return tmp_path / "Tiny.gguf"

    monkeypatch.setattr("edge_runtime.cli.pull.pull", pull)
    assert main(["pull", "tiny"]) == 0
    assert capsys.readouterr() == (f"{tmp_path / 'Tiny.gguf'}\n", "tiny: 10 MB, licence mit\n")


@pytest.mark.parametrize("error", [DownloadError("no network"), StorageError("the disk is full")])
def test_pull_that_fails_gives_1(monkeypatch: pytest.MonkeyPatch, capsys, error):
    def pull(model: str, *, report: Any) -> Path:
        raise error

    monkeypatch.setattr("edge_runtime.cli.pull.pull", pull)
    assert main(["pull", "tiny"]) == 1
    assert capsys.readouterr() == ("", f"error: {error.message}\n")


# list, rm


def test_an_empty_list_says_how_to_begin_and_prints_nothing(capsys):
    assert main(["list"]) == 0
    out, err = capsys.readouterr()
    assert out == "" and "edge-runtime pull" in err


def test_list_shows_names_kinds_recipes_and_sizes(store: Path, capsys):
    put_download(store)
    doubles.write_bundle(store / "bundles" / doubles.KEY / "int4")
    assert main(["list"]) == 0
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split() == ["NAME", "KIND", "RECIPE", "SIZE", "MODIFIED"]
    assert first.split()[:5] == ["tiny-1m", "gguf", "-", "10.2", "kB"]
    assert second.split()[:3] == ["tiny-1m", "bundle", "int4"]


def test_list_as_json_is_for_programs(store: Path, capsys):
    path = put_download(store)
    assert main(["list", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["name"] == "tiny-1m" and entry["path"] == str(path)
    assert entry["size_bytes"] == len(doubles.CONTENT) and entry["recipe"] is None


def test_rm_says_what_it_removed(store: Path, capsys):
    put_download(store)
    doubles.write_bundle(store / "bundles" / doubles.KEY / "int4")
    assert main(["rm", "tiny"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "removed tiny-1m (gguf, 10.2 kB)"
    assert lines[1].startswith("removed tiny-1m (bundle int4, ")
    assert main(["rm", "tiny"]) == 1


def test_rm_never_touches_a_path(store: Path, tmp_path: Path, capsys):
    file = tmp_path / "mine.gguf"
    file.write_bytes(b"GGUF")
    assert main(["rm", "mine.gguf"]) == 1
    assert file.exists() and "error: the store has no 'mine.gguf'" in capsys.readouterr().err


# export


def test_export_goes_into_the_store_and_prints_the_report(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    exporter = doubles.ScriptedExporter().install(monkeypatch)
    put_download(store)
    assert main(["export", "tiny", "--quant", "int8"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert " ".join(lines[0].split()) == "GROUP TENSORS WAS BECAME BEFORE AFTER ERROR"
    assert " ".join(lines[1].split()) == "linear 14 Q4_1 int8 1.0 kB 2.0 kB 0.120%"
    assert lines[-1] == str(store / "bundles" / doubles.KEY / "int8")
    assert "exporting tiny-1m" in err and "exporting" not in out
    assert [call.quant for call in exporter.calls] == ["int8"]


def test_export_again_shows_the_same_and_force_makes_it_anew(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    exporter = doubles.ScriptedExporter().install(monkeypatch)
    put_download(store)
    main(["export", "tiny"])
    first = capsys.readouterr().out
    assert main(["export", "tiny"]) == 0
    assert capsys.readouterr().out == first and len(exporter.calls) == 1
    assert main(["export", "tiny", "--force"]) == 0
    assert [call.overwrite for call in exporter.calls] == [False, True]


def test_export_to_a_directory_of_the_users(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    exporter = doubles.ScriptedExporter().install(monkeypatch)
    source = tmp_path / "m.gguf"
    source.write_bytes(doubles.CONTENT)
    arguments = ["export", "m.gguf", "-o", "out", "--name", "mine", "--json"]
    assert main(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["path"] == "out" and report["name"] == "mine"
    assert report["quantization"]["groups"][0]["stored_as"] == "int8"
    (call,) = exporter.calls
    assert (call.source, call.destination) == (Path("m.gguf"), Path("out"))
    assert (call.quant, call.name, call.overwrite) == ("auto", "mine", False)
    assert not store.exists() or not (store / "bundles").exists()


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["bundle"], "is a bundle already"),
        (["m.gguf:int4", "--quant", "int8"], "disagree"),
        (["nothing.gguf"], "no such file"),
    ],
)
def test_export_of_what_cannot_be_is_refused(tmp_path: Path, capsys, arguments, says):
    doubles.write_bundle(tmp_path / "bundle")
    (tmp_path / "m.gguf").write_bytes(doubles.CONTENT)
    assert main(["export", *arguments]) in (1, 2)
    assert says in capsys.readouterr().err


# inspect


def test_inspect_shows_a_bundle(store: Path, tmp_path: Path, capsys):
    doubles.write_bundle(tmp_path / "bundle")
    assert main(["inspect", "bundle"]) == 0
    out = capsys.readouterr().out
    for fact in ("llama", "mit", "256 tokens", "temperature 0.2", "fused", "Q4_1", "0.120%"):
        assert fact in out


def test_inspect_as_json_gives_the_manifest(tmp_path: Path, capsys):
    doubles.write_bundle(tmp_path / "bundle", recipe="int4")
    assert main(["inspect", "bundle", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["kind"] == "bundle"
    shown = plain["manifest"]
    written = json.loads((tmp_path / "bundle" / "manifest.json").read_text())
    # What the file leaves out is shown with its default.
    shown["graphs"] = [
        {key: graph[key] for key in entry}
        for graph, entry in zip(shown["graphs"], written["graphs"], strict=True)
    ]
    assert shown == written


def test_inspect_of_a_name_shows_what_would_run(store: Path, capsys):
    doubles.write_bundle(store / "bundles" / doubles.KEY / "int4", recipe="int4")
    assert main(["inspect", "tiny"]) == 0
    assert capsys.readouterr().out.startswith(str(store / "bundles" / doubles.KEY / "int4"))


def test_inspect_shows_a_gguf_file(tmp_path: Path, capsys):
    gguf = pytest.importorskip("gguf", reason="needs the export extra")
    import numpy as np

    writer = gguf.GGUFWriter("m.gguf", "llama")
    writer.add_string("general.name", "Tiny\x1b[31m")
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_tensor("output_norm.weight", np.ones(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert main(["inspect", "m.gguf"]) == 0
    out = capsys.readouterr().out
    assert "general.architecture" in out and "[2 values]" in out
    assert "F32         1  32 B" in out
    assert "\x1b" not in out, "a file must not steer the terminal"
    assert main(["inspect", "m.gguf", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["metadata"]["tokenizer.ggml.tokens"] == ["a", "b"]
    assert plain["tensors"]["output_norm.weight"] == {
        "kind": "F32", "shape": [8], "size_bytes": 32,
    }  # fmt: skip


def test_inspect_of_a_text_file_named_gguf_is_one_error(tmp_path: Path, capsys):
    pytest.importorskip("gguf", reason="needs the export extra")
    (tmp_path / "m.gguf").write_text("just text, nothing else to see here")
    assert main(["inspect", "m.gguf"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and "Traceback" not in err


def test_a_name_that_is_no_text_is_refused_before_anything_is_done(store: Path, capsys):
    path = put_download(store)
    assert main(["export", str(path), "--name", "a\udcff"]) == 2
    assert capsys.readouterr().err.startswith("error: --name is not valid text at character 1")
