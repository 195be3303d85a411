from __future__ import annotations

import errno
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import get_args

import pytest
from store_doubles import CONTENT, KEY, ScriptedExporter, use_tiny_catalog, write_bundle

from edge_runtime.errors import (
    ExportError,
    IntegrityError,
    ModelNotFoundError,
    SourceFormatError,
    StorageError,
    UsageError,
)
from edge_runtime.store.home import Home
from edge_runtime.store.names import Recipe
from edge_runtime.store.progress import Event, Progress, silent
from edge_runtime.store.resolve import (
    ensure_bundle,
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    use_tiny_catalog(monkeypatch)
    monkeypatch.chdir(tmp_path)
    return Home(tmp_path / "store")


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> ScriptedExporter:
    return ScriptedExporter().install(monkeypatch)


def put_download(home: Home, content: bytes = CONTENT) -> Path:
    path = home.catalog_downloads / "tiny-1m" / "Tiny.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


def put_file(path: Path, content: bytes = CONTENT) -> Path:
    path.write_bytes(content)
    return path


# Exporting on first use


def test_the_first_use_exports_and_the_next_does_not(home: Home, exporter: ScriptedExporter):
    put_download(home)
    events: list[Event] = []
    first = ensure_bundle("tiny", quant=None, report=events.append, home=home)
    assert first == home.bundles / KEY / "auto" and (first / "manifest.json").is_file()
    assert Progress("weights", 1, 2) in events
    assert ensure_bundle("tiny-1m", quant="auto", report=silent, home=home) == first
    assert [(c.quant, c.name) for c in exporter.calls] == [("auto", "tiny-1m")]


def test_recipes_are_separate_bundles(home: Home, exporter: ScriptedExporter):
    put_download(home)
    named = ensure_bundle("tiny:int4", quant=None, report=silent, home=home)
    asked = ensure_bundle("tiny", quant="int4", report=silent, home=home)
    other = ensure_bundle("tiny", quant="int8", report=silent, home=home)
    assert named == asked == home.bundles / KEY / "int4"
    assert other == home.bundles / KEY / "int8"
    assert [c.quant for c in exporter.calls] == ["int4", "int8"]


def test_the_same_file_under_another_path_is_the_same_model(
    home: Home, tmp_path: Path, exporter: ScriptedExporter
):
    put_download(home)
    copy = put_file(tmp_path / "Tiny.gguf")
    first = ensure_bundle(str(copy), quant=None, report=silent, home=home)
    assert ensure_bundle("tiny", quant=None, report=silent, home=home) == first
    assert len(exporter.calls) == 1


def test_a_changed_file_is_another_model(home: Home, tmp_path: Path, exporter: ScriptedExporter):
    file = put_file(tmp_path / "m.gguf")
    first = ensure_bundle(str(file), quant=None, report=silent, home=home)
    put_file(file, CONTENT + b"more")
    assert ensure_bundle(str(file), quant=None, report=silent, home=home) != first


def test_a_bundle_is_used_when_its_source_is_gone(home: Home, exporter: ScriptedExporter):
    bundle = write_bundle(home.bundles / KEY / "int4", recipe="int4")
    assert ensure_bundle("tiny", quant=None, report=silent, home=home) == bundle
    with pytest.raises(ModelNotFoundError, match="as int4, not as int8") as caught:
        ensure_bundle("tiny", quant="int8", report=silent, home=home)
    assert caught.value.hint == "edge-runtime pull tiny-1m"


def test_a_bundle_directory_cannot_become_another_recipe(home: Home, tmp_path: Path):
    bundle = write_bundle(tmp_path / "bundle", recipe="int8")
    assert ensure_bundle(str(bundle), quant="int8", report=silent, home=home) == bundle
    with pytest.raises(UsageError, match="exported as int8, not as int4"):
        ensure_bundle(str(bundle), quant="int4", report=silent, home=home)


def test_two_recipes_at_once_are_refused(home: Home):
    put_download(home)
    with pytest.raises(UsageError, match="int4, and --quant for int8"):
        ensure_bundle("tiny:int4", quant="int8", report=silent, home=home)


def test_a_pulled_file_that_was_changed_is_not_exported(home: Home, exporter: ScriptedExporter):
    put_download(home, CONTENT[:-1])
    with pytest.raises(IntegrityError, match="sha256"):
        ensure_bundle("tiny", quant=None, report=silent, home=home)
    assert exporter.calls == []


@pytest.mark.parametrize("error", [StorageError("the disk is full"), KeyboardInterrupt()])
def test_a_failed_export_leaves_no_bundle_and_the_next_starts_afresh(
    home: Home, monkeypatch: pytest.MonkeyPatch, error: BaseException
):
    put_download(home)

    def fail_once(number: int) -> None:
        if number == 1:
            raise error

    ScriptedExporter(during=fail_once).install(monkeypatch)
    with pytest.raises(type(error)):
        ensure_bundle("tiny", quant=None, report=silent, home=home)
    assert list(home.bundles.iterdir()) == [], "no folder of it is left"
    assert ensure_bundle("tiny", quant=None, report=silent, home=home).is_dir()


def test_a_source_that_is_refused_at_once_leaves_the_error_alone(
    home: Home, monkeypatch: pytest.MonkeyPatch
):
    put_download(home)
    ScriptedExporter(refusal=SourceFormatError("truncated")).install(monkeypatch)
    events: list[Event] = []
    with pytest.raises(SourceFormatError):
        ensure_bundle("tiny", quant=None, report=events.append, home=home)
    assert events == [] and list(home.bundles.iterdir()) == []


def test_a_failed_export_leaves_the_other_recipes(home: Home, monkeypatch: pytest.MonkeyPatch):
    put_download(home)
    bundle = write_bundle(home.bundles / KEY / "int4", recipe="int4")
    ScriptedExporter(refusal=SourceFormatError("truncated")).install(monkeypatch)
    with pytest.raises(SourceFormatError):
        ensure_bundle("tiny", quant="int8", report=silent, home=home)
    assert bundle.is_dir()


@pytest.mark.parametrize("package", ["onnx", "gguf"])
def test_a_missing_extra_is_said_with_the_command_that_brings_it(
    home: Home, monkeypatch: pytest.MonkeyPatch, package: str
):
    put_download(home)

    def missing(number: int) -> None:
        raise ModuleNotFoundError(f"No module named '{package}'", name=f"{package}.helper")

    ScriptedExporter(during=missing).install(monkeypatch)
    with pytest.raises(ExportError, match=f"'{package}', which is not installed") as caught:
        ensure_bundle("tiny", quant=None, report=silent, home=home)
    assert caught.value.hint == "pip install 'edge-runtime[export]'"


def test_a_broken_installation_is_not_taken_for_a_missing_extra(
    home: Home, monkeypatch: pytest.MonkeyPatch
):
    put_download(home)

    def missing(number: int) -> None:
        raise ModuleNotFoundError("No module named 'numpy'", name="numpy")

    ScriptedExporter(during=missing).install(monkeypatch)
    with pytest.raises(ModuleNotFoundError):
        ensure_bundle("tiny", quant=None, report=silent, home=home)


def test_two_processes_export_once_and_both_get_the_bundle(tmp_path: Path):
    file = put_file(tmp_path / "m.gguf")
    script = textwrap.dedent(
        """
        import sys, time
        from pathlib import Path
        sys.path.insert(0, sys.argv[3])
        from store_doubles import ScriptedExporter
        from edge_runtime.store.home import Home
        from edge_runtime.store.progress import Notice
        from edge_runtime.store.resolve import ensure_bundle

        def slow(number):
            print("exporting", flush=True)
            sys.stdin.readline()  # until the test says so

        def report(event):
            if isinstance(event, Notice) and "waiting" in event.text:
                print("waiting", flush=True)

        sys.modules["edge_export.pipeline"] = ScriptedExporter(during=slow).module()
        path = ensure_bundle(sys.argv[1], quant=None, report=report, home=Home(Path(sys.argv[2])))
        print(path, flush=True)
        """
    )
    command = [sys.executable, "-c", script, str(file), str(tmp_path / "store")]
    command.append(str(Path(__file__).parent))

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    with start() as first:
        assert first.stdout is not None and first.stdin is not None
        assert first.stdout.readline() == "exporting\n"
        with start() as second:
            assert second.stdout is not None
            assert second.stdout.readline() == "waiting\n"
            first.stdin.write("go\n")
            first.stdin.flush()
            made, used = first.stdout.read(), second.stdout.read()
    assert made == used and Path(made.strip(), "manifest.json").is_file()
    assert first.returncode == second.returncode == 0


def test_the_recipes_are_the_exporters_own():
    recipes = pytest.importorskip("edge_export.quantize.recipes", reason="needs the export extra")
    assert get_args(recipes.Recipe) == get_args(Recipe)


def test_what_the_disk_refuses_is_one_error_that_names_the_place(
    home: Home, monkeypatch: pytest.MonkeyPatch
):
    put_file(Path("m.gguf"))

    def refuse(number: int) -> None:
        raise OSError(errno.ENAMETOOLONG, "File name too long", "/a/place")

    ScriptedExporter(during=refuse).install(monkeypatch)
    with pytest.raises(StorageError, match="/a/place: File name too long"):
        ensure_bundle("m.gguf", quant=None, report=silent, home=home)


def test_what_a_killed_export_left_is_swept_by_the_next(
    home: Home, exporter: ScriptedExporter, tmp_path: Path
):
    put_download(home)
    left = home.bundles / KEY / ".int4.abc.part"
    left.mkdir(parents=True)
    (left / "decoder.weights").write_bytes(b"half")
    ensure_bundle("tiny", quant=None, report=silent, home=home)
    assert [p.name for p in (home.bundles / KEY).iterdir()] == ["auto"]
