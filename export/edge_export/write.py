"""Writing a bundle so that a broken export never looks whole.

Everything goes into a directory beside the destination; the manifest is written last, files are
flushed, and the directory is renamed into place. Knows no model.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_runtime.bundle import MANIFEST_NAME, FileEntry, Manifest
from edge_runtime.errors import StorageError, UsageError
from edge_runtime.file_hash import sha256_of_file
from edge_runtime.part_files import aside_of, part_folder
from edge_runtime.typed_data import encode

_DISK_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}
_IN_THE_WAY = (errno.ENOTEMPTY, errno.EEXIST)
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
PAGE_BYTES = 4096  # external data is mapped: each array starts on a page


class WeightsFile:
    """An external data file that grows by whole arrays, each aligned to a page.

    Args:
        path: the file to create.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._stream = path.open("xb")
        self._size = 0

    def append(self, array: NDArray[Any]) -> tuple[int, int]:
        """Write an array.

        Returns:
            Offset and length in bytes.
        """
        padding = -self._size % PAGE_BYTES
        self._stream.write(b"\0" * padding)
        offset = self._size + padding
        data = np.ascontiguousarray(array)
        self._stream.write(data.data.cast("B") if data.size else b"")
        self._size = offset + data.nbytes
        return offset, data.nbytes

    def close(self) -> None:
        """Write out what is buffered and close; :func:`bundle_directory` flushes to the disk.

        Raises:
            OSError: the disk is full; the file is closed all the same.
        """
        self._stream.close()

    def __enter__(self) -> WeightsFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
            return
        # After an error the file is going to be deleted: what it lacks is no second error.
        with contextlib.suppress(OSError):
            self.close()


@contextlib.contextmanager
def bundle_directory(destination: Path, *, overwrite: bool) -> Iterator[Path]:
    """A directory to fill; it becomes ``destination`` when the block ends without an error.

    On any error, Ctrl-C included, what was written is deleted and ``destination`` is as before.

    Raises:
        UsageError: the destination exists (or came to exist meanwhile) and ``overwrite`` is False,
            or it is not a bundle.
        StorageError: the disk is full or cannot be written.
    """
    _check_destination(destination, overwrite=overwrite)
    with translated_storage_errors(destination), contextlib.ExitStack() as until_done:
        destination.parent.mkdir(parents=True, exist_ok=True)
        work = until_done.enter_context(part_folder(destination))
        yield work
        work.chmod(0o755)  # a part is nobody else's; a bundle is read by whoever may
        _flush_files(work)
        _check_destination(destination, overwrite=overwrite)
        _move_into_place(work, destination)


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write ``manifest.json``, last of all files."""
    text = json.dumps(encode(manifest), indent=2, ensure_ascii=False) + "\n"
    write_text(directory / MANIFEST_NAME, text)


def write_text(path: Path, text: str) -> None:
    """Write a new text file, the same bytes on every system."""
    with path.open("x", encoding="utf-8", newline="\n") as stream:
        stream.write(text)


def file_entries(directory: Path) -> dict[str, FileEntry]:
    """Size and sha256 of every file in the directory, by its relative path."""
    files = sorted(p for p in directory.rglob("*") if p.is_file() and p.name != MANIFEST_NAME)
    return {
        p.relative_to(directory).as_posix(): FileEntry(p.stat().st_size, sha256_of_file(p))
        for p in files
    }


@contextlib.contextmanager
def translated_storage_errors(destination: Path) -> Iterator[None]:
    """Turn what the disk refuses into a StorageError that says what to do."""
    try:
        yield
    except OSError as exc:
        if exc.errno in _DISK_FULL:
            free = shutil.disk_usage(_existing_parent(destination)).free
            raise StorageError(
                f"the disk is full: {destination} ({free // 1_000_000} MB free)",
                hint="free some space, or export elsewhere with -o or EDGE_RUNTIME_HOME",
            ) from exc
        if exc.errno == errno.EFBIG:
            raise StorageError(
                f"the file system of {destination} holds no file as large as the weights",
                hint="FAT ends at 4 GB: export to another disk with -o or EDGE_RUNTIME_HOME",
            ) from exc
        if exc.errno in _NOT_ALLOWED:
            raise StorageError(
                f"{exc.filename or destination} cannot be written: {exc.strerror}",
                hint="choose a place you may write to with -o or EDGE_RUNTIME_HOME",
            ) from exc
        raise


def _existing_parent(path: Path) -> Path:
    return next(p for p in (path, *path.absolute().parents) if p.exists())


def _check_destination(destination: Path, *, overwrite: bool) -> None:
    if not os.path.lexists(destination):  # a broken link is in the way as well
        return
    if not overwrite:
        raise _already_there(destination)
    ours = destination.is_dir() and (
        (destination / MANIFEST_NAME).is_file() or not any(destination.iterdir())
    )
    if destination.is_symlink() or not ours:
        raise UsageError(f"{destination} is not a bundle, so it will not be replaced")


def _already_there(destination: Path) -> UsageError:
    return UsageError(f"{destination} already exists", hint="pass --force to replace it")


def _flush_files(directory: Path) -> None:
    """After a loss of power no name may stand for content that never reached the disk."""
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb+") as stream:  # Windows flushes only what may be written
                os.fsync(stream.fileno())


def _move_into_place(work: Path, destination: Path) -> None:
    # A directory cannot replace one that holds files in a single step: the old one steps aside
    # first, and comes back if the new one cannot take its place, whatever the reason.
    aside = aside_of(work)
    try:
        if destination.exists():
            destination.rename(aside)
        work.rename(destination)
    except BaseException as exc:
        if aside.exists() and not destination.exists():
            aside.rename(destination)
        if isinstance(exc, OSError) and exc.errno in _IN_THE_WAY:
            raise _already_there(destination) from exc  # another export was a moment faster
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
