"""A bundle is whole or absent, whatever happens while it is written."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from edge_export.write import PAGE_BYTES, WeightsFile, bundle_directory, file_entries, write_text

from edge_runtime.errors import StorageError, UsageError
from edge_runtime.file_hash import sha256_of_file


def fill(directory: Path, text: str = "new") -> None:
    (directory / "sub").mkdir()
    write_text(directory / "sub" / "file", text)
    write_text(directory / "manifest.json", text)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A bundle that is there already."""
    path = tmp_path / "bundle"
    with bundle_directory(path, overwrite=False) as directory:
        fill(directory, "old")
    return path


def names(path: Path) -> list[str]:
    return sorted(p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file())


def test_a_bundle_appears_when_it_is_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    destination = tmp_path / "deep" / "bundle"
    with bundle_directory(destination, overwrite=False) as directory:
        fill(directory)
        assert not destination.exists()
        assert directory.parent == destination.parent, "a rename works within one file system"
    assert names(tmp_path) == ["deep/bundle/manifest.json", "deep/bundle/sub/file"]
    assert [p.name for p in destination.parent.iterdir()] == ["bundle"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no locks that end with a process")
def test_what_a_killed_export_left_beside_a_destination_is_swept(tmp_path: Path) -> None:
    left = tmp_path / ".bundle.abcd_123.part"
    left.mkdir()
    (left / "decoder.weights").write_bytes(b"half")
    with bundle_directory(tmp_path / "bundle", overwrite=False) as directory:
        assert not left.exists()
        fill(directory)
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has other permissions")
def test_whoever_may_read_the_folder_may_read_the_bundle(old: Path) -> None:
    assert old.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit])
def test_an_error_in_the_middle_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    with (
        pytest.raises(error),
        bundle_directory(tmp_path / "bundle", overwrite=False) as directory,
    ):
        fill(directory)
        raise error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_error_in_the_middle_leaves_the_old_bundle_as_it_was(
    old: Path, error: type[BaseException]
) -> None:
    with pytest.raises(error), bundle_directory(old, overwrite=True) as directory:
        fill(directory)
        raise error
    assert (old / "manifest.json").read_text() == "old"
    assert [p.name for p in old.parent.iterdir()] == ["bundle"]


def test_a_bundle_is_replaced_only_when_asked(old: Path) -> None:
    with pytest.raises(UsageError, match="already exists") as caught:
        bundle_directory(old, overwrite=False).__enter__()
    assert "--force" in str(caught.value.hint)
    with bundle_directory(old, overwrite=True) as directory:
        fill(directory)
    assert (old / "manifest.json").read_text() == "new"
    assert [p.name for p in old.parent.iterdir()] == ["bundle"]


def test_an_empty_directory_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    with bundle_directory(tmp_path / "bundle", overwrite=True) as directory:
        fill(directory)
    assert len(names(tmp_path / "bundle")) == 2


@pytest.mark.parametrize("kind", ["a directory of papers", "a file", "a broken link", "a link"])
def test_what_is_no_bundle_is_never_replaced(tmp_path: Path, kind: str) -> None:
    destination, papers = tmp_path / "here", tmp_path / "papers"
    papers.mkdir()
    (papers / "thesis.txt").write_text("precious")
    if kind == "a directory of papers":
        papers.rename(destination)
    elif kind == "a file":
        destination.write_text("precious")
    else:
        try:
            destination.symlink_to(papers if kind == "a link" else tmp_path / "nowhere")
        except OSError:
            pytest.skip("this system makes no links")
    before = names(tmp_path)
    with pytest.raises(UsageError, match="not a bundle"):
        bundle_directory(destination, overwrite=True).__enter__()
    assert names(tmp_path) == before


def test_a_bundle_that_came_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    destination = tmp_path / "bundle"
    with (
        pytest.raises(UsageError, match="already exists"),
        bundle_directory(destination, overwrite=False) as slower,
    ):
        fill(slower, "slower")
        with bundle_directory(destination, overwrite=False) as faster:
            fill(faster, "faster")
    assert (destination / "manifest.json").read_text() == "faster"
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]


def test_a_bundle_that_came_in_the_last_moment_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = tmp_path / "bundle"
    rename = Path.rename

    def beaten(self: Path, target: Path) -> Path:
        monkeypatch.undo()
        with bundle_directory(destination, overwrite=False) as faster:
            fill(faster, "faster")
        return rename(self, target)

    with (
        pytest.raises(UsageError, match="already exists"),
        bundle_directory(destination, overwrite=False) as slower,
    ):
        fill(slower, "slower")
        monkeypatch.setattr(Path, "rename", beaten)
    assert (destination / "manifest.json").read_text() == "faster"
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]


@pytest.mark.parametrize("error", [OSError(errno.EIO, "I/O error"), KeyboardInterrupt()])
def test_the_old_bundle_comes_back_when_the_new_one_cannot_take_its_place(
    old: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.suffix == ".part":
            raise error
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(type(error)), bundle_directory(old, overwrite=True) as directory:
        fill(directory)
    assert (old / "manifest.json").read_text() == "old"
    assert [p.name for p in old.parent.iterdir()] == ["bundle"]


def test_a_new_bundle_stays_when_the_interruption_comes_after_it_is_in_place(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def interrupted(self: Path, target: Path) -> Path:
        moved = rename(self, target)
        if self.suffix == ".part":
            raise KeyboardInterrupt
        return moved

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt), bundle_directory(old, overwrite=True) as directory:
        fill(directory)
    assert (old / "manifest.json").read_text() == "new"
    assert [p.name for p in old.parent.iterdir()] == ["bundle"]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "disk is full"),
        (errno.EFBIG, "holds no file as large"),
        (errno.EROFS, "cannot be written"),
        (errno.EACCES, "cannot be written"),
    ],
)
def test_what_the_disk_refuses_says_what_to_do_and_leaves_nothing(
    tmp_path: Path, number: int, words: str
) -> None:
    with (
        pytest.raises(StorageError, match=words) as caught,
        bundle_directory(tmp_path / "bundle", overwrite=False) as directory,
    ):
        fill(directory)
        raise OSError(number, os.strerror(number))
    assert "-o" in str(caught.value.hint)
    assert list(tmp_path.iterdir()) == []


def test_other_errors_of_the_system_come_through(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), bundle_directory(tmp_path / "b", overwrite=False):
        (tmp_path / "missing").read_bytes()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_disk_that_fills_up_while_weights_are_written_is_one_error(tmp_path: Path) -> None:
    with (
        pytest.raises(StorageError, match="disk is full"),
        bundle_directory(tmp_path / "bundle", overwrite=False) as directory,
    ):
        (directory / "weights").symlink_to("/dev/full")
        file = WeightsFile.__new__(WeightsFile)
        file.name, file._size = "weights", 0
        file._stream = (directory / "weights").open("wb")
        with file:
            for _ in range(10):
                file.append(np.ones(100_000, np.float32))
    assert file._stream.closed
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="a directory without write permission")
def test_a_place_that_may_not_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "x"))

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    with pytest.raises(StorageError, match=r"x cannot be written: Permission denied"):
        bundle_directory(tmp_path / "bundle", overwrite=False).__enter__()


def test_every_file_is_on_the_disk_before_its_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    rename, fsync = Path.rename, os.fsync

    def noted_rename(self: Path, target: Path) -> Path:
        events.append("rename")
        return rename(self, target)

    def noted_fsync(number: int) -> None:
        events.append("fsync")
        fsync(number)

    monkeypatch.setattr(Path, "rename", noted_rename)
    monkeypatch.setattr(os, "fsync", noted_fsync)
    with bundle_directory(tmp_path / "bundle", overwrite=False) as directory:
        fill(directory)
    assert events == ["fsync", "fsync", "rename"]


def test_entries_describe_every_file_but_the_manifest(old: Path) -> None:
    (entry,) = file_entries(old).items()
    assert entry[0] == "sub/file"
    assert entry[1].size_bytes == 3
    assert entry[1].sha256 == sha256_of_file(old / "sub" / "file")


def test_text_is_the_same_bytes_on_every_system(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "é\n日\n")
    assert (tmp_path / "file").read_bytes() == "é\n日\n".encode()


def test_arrays_start_on_pages_and_come_back_from_their_extents(tmp_path: Path) -> None:
    arrays = [
        np.arange(3, dtype=np.uint8),
        np.empty((0, 5), np.float32),
        np.arange(5000, dtype=np.float32).reshape(50, 100).T,
        np.array(7, np.int64),
    ]
    with WeightsFile(tmp_path / "weights") as file:
        extents = [file.append(array) for array in arrays]
    data = (tmp_path / "weights").read_bytes()
    for array, (offset, length) in zip(arrays, extents, strict=True):
        assert offset % PAGE_BYTES == 0
        found = np.frombuffer(data[offset : offset + length], array.dtype).reshape(array.shape)
        assert (found == array).all()
    assert len(data) == extents[-1][0] + 8
