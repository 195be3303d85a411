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
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_runtime.bundle import MANIFEST_NAME, FileEntry, Manifest
from edge_runtime.errors import StorageError, UsageError
from edge_runtime.file_hash import sha256_of_file
from edge_runtime.typed_data import encode

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
        """Flush to the disk and close."""
        if not self._stream.closed:
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self._stream.close()

    def __enter__(self) -> WeightsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def bundle_directory(destination: Path, *, overwrite: bool) -> Iterator[Path]:
    """A directory to fill; it becomes ``destination`` when the block ends without an error.

    On any error, Ctrl-C included, what was written is deleted and ``destination`` is as before.

    Raises:
        UsageError: the destination exists and ``overwrite`` is False, or it is not a bundle.
        StorageError: the disk is full or cannot be written.
    """
    if destination.exists():
        if not overwrite:
            raise UsageError(f"{destination} already exists", hint="pass --force to replace it")
        if not (destination / MANIFEST_NAME).is_file() and any(destination.iterdir()):
            raise UsageError(f"{destination} is not a bundle, so it will not be replaced")
    with translated_storage_errors(destination):
        destination.parent.mkdir(parents=True, exist_ok=True)
        work = Path(
            tempfile.mkdtemp(dir=destination.parent, prefix=f".{destination.name}.", suffix=".part")
        )
    try:
        with translated_storage_errors(destination):
            yield work
            work.chmod(0o755)  # mkdtemp keeps others out; a bundle is read by whoever may
            _move_into_place(work, destination)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write ``manifest.json``, last of all files."""
    text = json.dumps(encode(manifest), indent=2, ensure_ascii=False) + "\n"
    write_text(directory / MANIFEST_NAME, text)


def write_text(path: Path, text: str) -> None:
    """Write a text file and flush it to the disk."""
    with path.open("x", encoding="utf-8", newline="\n") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


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
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(_existing_parent(destination)).free
            raise StorageError(
                f"the disk is full: {destination} ({free // 1_000_000} MB free)",
                hint="free some space, or export elsewhere with -o or EDGE_RUNTIME_HOME",
            ) from exc
        if exc.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise StorageError(
                f"{exc.filename or destination} cannot be written: {exc.strerror}",
                hint="choose a place you may write to with -o or EDGE_RUNTIME_HOME",
            ) from exc
        raise


def _existing_parent(path: Path) -> Path:
    return next(p for p in (path, *path.absolute().parents) if p.exists())


def _move_into_place(work: Path, destination: Path) -> None:
    # A directory cannot replace one that holds files in a single step: the old one steps aside
    # first, and comes back if the new one cannot take its place.
    if not destination.exists():
        work.rename(destination)
        return
    aside = work.with_suffix(".old")
    destination.rename(aside)
    try:
        work.rename(destination)
    except OSError:
        aside.rename(destination)
        raise
    shutil.rmtree(aside, ignore_errors=True)
