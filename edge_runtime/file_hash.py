"""sha256 of files, plain and remembered.

Hashing the weights at every start would cost more than loading them, so a hash is remembered
under everything that changes when a file's content does: path, size, inode and both times. Knows
no bundle.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_BLOCK_BYTES = 1 << 20
_CHECKPOINT_SUFFIXES = (".json", ".safetensors", ".jinja", ".model")


def sha256_of_file(path: Path) -> str:
    """The sha256 of a file, as lower-case hex.

    Raises:
        OSError: the file cannot be read.
    """
    import hashlib  # brings OpenSSL along, which a start with remembered hashes does without

    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def sha256_of_directory(
    directory: Path, *, hash_file: Callable[[Path], str] = sha256_of_file
) -> str:
    """One hash for the files of a Hugging Face model directory that an export is made from.

    It is the sha256 of a line for each of them, in the order of their names: the file's sha256,
    two spaces, and its path.

    Args:
        directory: subdirectories count too, those of a dot name do not.
        hash_file: gives a file's sha256; a caller may pass a remembering one.

    Raises:
        OSError: a file cannot be read.
    """
    import hashlib

    digest = hashlib.sha256()
    for file in checkpoint_files(directory):
        name = file.relative_to(directory).as_posix()
        digest.update(f"{hash_file(file)}  {name}\n".encode())
    return digest.hexdigest()


def checkpoint_files(directory: Path) -> list[Path]:
    """The files of a Hugging Face model directory that an export is made from, by name."""
    files = [
        p
        for p in directory.rglob("*")
        if p.suffix in _CHECKPOINT_SUFFIXES
        and not any(part.startswith(".") for part in p.relative_to(directory).parts)
        and p.is_file()
    ]
    return sorted(files, key=lambda p: p.relative_to(directory).as_posix())


class RememberedHashes:
    """sha256 of files, kept in one small JSON file between runs.

    A change that leaves size, inode, mtime and ctime as they were is not seen; ctime cannot be set
    by a program, so this takes a tampered clock (on Windows ctime is the time of creation, and a
    mtime set back is enough). An unreadable or unwritable memory costs only
    time.

    Args:
        memory: the JSON file.
    """

    def __init__(self, memory: Path) -> None:
        self._memory = memory
        try:
            loaded = json.loads(memory.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            loaded = {}
        entries = loaded.items() if isinstance(loaded, dict) else ()
        self._known = {key: digest for key, digest in entries if isinstance(digest, str)}

    def __call__(self, path: Path) -> str:
        """The sha256 of ``path``, from memory where the file is unchanged.

        Raises:
            OSError: the file cannot be read.
        """
        key = self._key(path)
        if key not in self._known:
            digest = sha256_of_file(path)
            if self._key(path) != key:
                return digest  # it changed while being read: not worth remembering
            name = _path_of(key)
            self._known = {k: v for k, v in self._known.items() if _path_of(k) != name}
            self._known[key] = digest
            self._save()
        return self._known[key]

    @staticmethod
    def _key(path: Path) -> str:
        resolved = path.resolve()
        s = resolved.stat()
        return f"{resolved}|{s.st_size}|{s.st_ino}|{s.st_mtime_ns}|{s.st_ctime_ns}"

    def _save(self) -> None:
        with suppress(OSError):
            self._memory.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._memory.parent, prefix=".hashes-")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as stream:
                    json.dump(self._known, stream)
                Path(name).replace(self._memory)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise


def _path_of(key: str) -> str:
    return key.rsplit("|", 4)[0]
