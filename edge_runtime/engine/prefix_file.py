"""Keys and values of a prompt in a file: written whole or not at all, and read with suspicion.

::

    8 bytes   magic
    4 bytes   length of the header, little-endian; 4 bytes: its CRC-32
    header    JSON, see :class:`PrefixHeader`
    ...       zeros to the next page
    tokens    int32, then zeros to the next page
    arrays    of each layer its keys, then its values: (kv_heads, tokens, head_size), each on a page

The header says what the numbers belong to (:class:`PrefixKey`), and whoever reads compares it with
what is running. Where each array lies follows from the header's sizes alone, so no offset of a
hostile file is ever followed. The checksums find damage; they are no proof against forgery: whoever
can write such a file decides what the model believes it has read. Knows arrays and files; knows no
cache and no session.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from edge_runtime.errors import PrefixFileError, PrefixMismatchError, StorageError
from edge_runtime.part_files import part_file, sync_folder
from edge_runtime.typed_data import DataError, decode, encode

SCHEMA_VERSION = 1
_MAGIC = b"EDGEKV\r\n"  # a transfer as text would change its end
_LEAD = struct.Struct("<8sII")
_PAGE_BYTES = 4096
_MAX_HEADER_BYTES = 1 << 20
# No model is near these; they keep products of a hostile header small.
_MAX_LAYERS = 1 << 12
_MAX_SIZE = 1 << 24
_CACHE_TYPES = ("float32", "float16", "int8")

Arrays = Sequence[NDArray[Any]]


@dataclass(frozen=True)
class PrefixKey:
    """What keys and values belong to: all of it must be the same where they are used.

    ``weights`` and ``graph`` are sha256, as the bundle's manifest has them. The last three change
    nothing but the rounding; a text could take another turn all the same.
    """

    weights: tuple[str, ...]
    graph: str
    recipe: str
    cache_type: str
    layers: int
    kv_heads: int
    head_size: int
    provider: str
    onnxruntime: str
    machine: str


ENVIRONMENT = frozenset({"provider", "onnxruntime", "machine"})


@dataclass(frozen=True)
class PrefixHeader:
    """What a prefix file says of itself.

    Args:
        schema_version: 1.
        model: the bundle's name, for people.
        producer: what wrote it.
        key: what it belongs to.
        tokens: how many tokens it holds.
        checksums: CRC-32 of the token ids, then of each array in order.
        system: the system message that it was made from, where it was.
    """

    schema_version: int
    model: str
    producer: str
    key: PrefixKey
    tokens: int
    checksums: tuple[int, ...]
    system: str | None = None


@dataclass(frozen=True)
class PrefixFile:
    """A file whose header and size have been checked."""

    path: Path
    header: PrefixHeader
    token_ids: tuple[int, ...]
    size_bytes: int

    @classmethod
    def open(cls, path: Path) -> PrefixFile:
        """Read and check everything but the arrays.

        Raises:
            PrefixFileError: it is no such file, it is damaged, or it cannot be read.
        """
        with _opened(path) as stream:
            header, start = _read_header(path, stream)
            size = os.fstat(stream.fileno()).st_size
            expected = _layout(header, start)
            if size != expected.end:
                raise PrefixFileError(
                    f"{path}: it has {size} bytes, and should have {expected.end}", hint=_REMAKE
                )
            ids = np.empty(header.tokens, np.int32)
            _read_array(path, stream, expected.tokens, ids, header.checksums[0])
            return cls(path, header, tuple(ids.tolist()), size)

    def require(self, key: PrefixKey) -> None:
        """Check that it belongs to what is running.

        Raises:
            PrefixMismatchError: it does not; the message says in what.
        """
        ours, theirs = vars(key), vars(self.header.key)
        differing = tuple(f.name for f in fields(PrefixKey) if ours[f.name] != theirs[f.name])
        if differing:
            name = differing[0]
            raise PrefixMismatchError(
                f"{self.path} was saved with another {name}: {_short(theirs[name])}, and here it "
                f"is {_short(ours[name])}",
                differing=differing,
            )

    def read(self, arrays: Arrays) -> None:
        """Fill arrays with the keys and values.

        Args:
            arrays: of each layer the keys, then the values: (kv_heads, tokens, head_size) of the
                key's type, each head contiguous. What they hold after an error is undefined.

        Raises:
            PrefixFileError: an array is damaged, or the file was changed meanwhile.
        """
        with _opened(self.path) as stream:
            header, start = _read_header(self.path, stream)
            if header != self.header:
                raise PrefixFileError(f"{self.path}: it was replaced meanwhile")
            offsets = _layout(header, start).arrays
            for array, offset, checksum in zip(arrays, offsets, header.checksums[1:], strict=True):
                _read_array(self.path, stream, offset, array, checksum)

    def verify(self) -> None:
        """Read all of it, for its checksums alone.

        Raises:
            PrefixFileError: as :meth:`read`.
        """
        key = self.header.key
        shape = (key.kv_heads, self.header.tokens, key.head_size)
        scratch = np.empty(shape, key.cache_type)
        self.read([scratch] * (2 * key.layers))


def is_prefix_file(path: Path) -> bool:
    """Whether a file begins as one; False where it cannot be read."""
    try:
        with _opened(path) as stream:
            return stream.read(len(_MAGIC)) == _MAGIC
    except PrefixFileError:
        return False


def write_prefix(
    path: Path,
    *,
    key: PrefixKey,
    model: str,
    producer: str,
    token_ids: Sequence[int],
    arrays: Arrays,
    system: str | None = None,
) -> PrefixHeader:
    """Write a prefix beside ``path``, and rename it there when it is whole and on the disk.

    A killed process leaves what was there before, and an unfinished file that the next one sweeps.

    Args:
        path: the file; one that is there is replaced if it is a prefix, too.
        key: what it belongs to.
        model: the bundle's name.
        producer: what writes it.
        token_ids: the tokens.
        arrays: as :meth:`PrefixFile.read`.
        system: the system message that the tokens were made from.

    Raises:
        PrefixFileError: something else is there.
        StorageError: the disk is full or cannot be written.
    """
    if os.path.lexists(path) and not is_prefix_file(path):
        raise PrefixFileError(
            f"{path} is not a saved prompt, so it will not be replaced", hint="name another file"
        )
    ids = np.array(token_ids, "<i4")
    sums = tuple(_checksum(array) for array in (ids, *arrays))
    header = PrefixHeader(SCHEMA_VERSION, model, producer, key, len(ids), sums, system)
    text = json.dumps(encode(header), ensure_ascii=False).encode("utf-8")
    try:
        with part_file(path) as work:
            with work.open("r+b") as stream:
                stream.write(_LEAD.pack(_MAGIC, len(text), zlib.crc32(text)) + text)
                for array in (ids, *arrays):
                    stream.write(b"\0" * (-stream.tell() % _PAGE_BYTES))
                    for block in _contiguous(array):
                        stream.write(block)
                stream.flush()
                os.fsync(stream.fileno())
            work.chmod(0o666 & ~_umask())
            work.replace(path)
        sync_folder(path.parent)
    except OSError as exc:
        raise _write_error(path, exc) from exc
    return header


@dataclass(frozen=True)
class _Layout:
    tokens: int
    arrays: tuple[int, ...]
    end: int


def _layout(header: PrefixHeader, start: int) -> _Layout:
    """Where things lie, in bytes, from the header's sizes alone."""
    key = header.key
    array_bytes = key.kv_heads * header.tokens * key.head_size * np.dtype(key.cache_type).itemsize
    tokens = _to_page(start)
    first = _to_page(tokens + 4 * header.tokens)
    arrays = tuple(first + n * _to_page(array_bytes) for n in range(2 * key.layers))
    return _Layout(tokens, arrays, arrays[-1] + array_bytes)


def _opened(path: Path) -> BinaryIO:
    try:
        # A pipe would be waited for.
        number = os.open(
            path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        )
        if not stat.S_ISREG(os.fstat(number).st_mode):
            os.close(number)
            raise PrefixFileError(f"{path} is not a regular file")
        return os.fdopen(number, "rb")
    except (OSError, ValueError) as exc:  # ValueError: a zero byte in the name
        reason = exc.strerror if isinstance(exc, OSError) else exc
        raise PrefixFileError(f"{path} cannot be read: {reason}") from exc


def _read_header(path: Path, stream: BinaryIO) -> tuple[PrefixHeader, int]:
    """The header, and where it ends."""
    lead = stream.read(_LEAD.size)
    if lead[: len(_MAGIC)] != _MAGIC or len(lead) < _LEAD.size:
        raise PrefixFileError(f"{path} is not a saved prompt", hint=_HOW_TO_MAKE)
    _, length, checksum = _LEAD.unpack(lead)
    if length > _MAX_HEADER_BYTES:
        raise PrefixFileError(f"{path}: a header of {length} bytes is longer than any")
    text = stream.read(length)
    if len(text) != length or zlib.crc32(text) != checksum:
        raise PrefixFileError(f"{path}: its header is damaged", hint=_REMAKE)
    try:
        data = json.loads(text.decode("utf-8"))
        version = data.get("schema_version") if isinstance(data, dict) else None
        if isinstance(version, int) and version != SCHEMA_VERSION:
            raise PrefixFileError(
                f"{path}: schema version {version}, and this program reads {SCHEMA_VERSION}",
                hint=_REMAKE,
            )
        header = decode(PrefixHeader, data)
    except (DataError, ValueError, RecursionError) as exc:
        raise PrefixFileError(f"{path}: its header is none: {_first_words(exc)}") from exc
    _check_sizes(path, header)
    return header, _LEAD.size + length


def _check_sizes(path: Path, header: PrefixHeader) -> None:
    key = header.key
    if key.cache_type not in _CACHE_TYPES:
        raise PrefixFileError(f"{path}: there is no cache type {key.cache_type!r:.40}")
    bounds = {
        "layers": (key.layers, _MAX_LAYERS),
        "kv_heads": (key.kv_heads, _MAX_SIZE),
        "head_size": (key.head_size, _MAX_SIZE),
        "tokens": (header.tokens, _MAX_SIZE),
    }
    for name, (value, most) in bounds.items():
        if not 1 <= value <= most:
            raise PrefixFileError(f"{path}: {name} is {value:.6g}")
    if len(header.checksums) != 1 + 2 * key.layers:
        raise PrefixFileError(f"{path}: it has {len(header.checksums)} checksums")


def _read_array(
    path: Path, stream: BinaryIO, offset: int, array: NDArray[Any], checksum: int
) -> None:
    stream.seek(offset)
    found = 0
    try:
        for block in _contiguous(array):
            if stream.readinto(block) != len(block):  # type: ignore[attr-defined]
                raise PrefixFileError(f"{path}: it ends too early", hint=_REMAKE)
            found = zlib.crc32(block, found)
    except OSError as exc:
        raise PrefixFileError(f"{path} cannot be read: {exc.strerror}") from exc
    if found != checksum:
        raise PrefixFileError(f"{path}: it is damaged or was changed", hint=_REMAKE)


def _contiguous(array: NDArray[Any]) -> Iterator[memoryview]:
    """An array's bytes, in its order, without a copy: a slot's heads lie apart in the cache."""
    if array.flags.c_contiguous:
        yield array.data.cast("B")
        return
    for part in array:
        yield from _contiguous(part)


def _checksum(array: NDArray[Any]) -> int:
    found = 0
    for block in _contiguous(array):
        found = zlib.crc32(block, found)
    return found


def _to_page(size: int) -> int:
    return -(-size // _PAGE_BYTES) * _PAGE_BYTES


def _umask() -> int:
    """What others may not do with new files here; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _short(value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return text if len(text) <= 24 else f"{text[:12]}..."


def _first_words(exc: Exception) -> str:
    return f"{exc}"[:120] or type(exc).__name__


def _write_error(path: Path, exc: OSError) -> StorageError:
    if exc.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)):
        free = shutil.disk_usage(path.parent).free
        return StorageError(
            f"the disk is full: {path} ({free // 1_000_000} MB free)", hint="free some space"
        )
    return StorageError(
        f"{path} cannot be written: {exc.strerror or exc}", hint="choose another place"
    )


_HOW_TO_MAKE = "make one with: edge-runtime cache save MODEL FILE --system TEXT"
_REMAKE = "save it again: edge-runtime cache save"
