"""Read the header of a GGUF file: its metadata, and where its tensors lie.

Every count and length is checked against the file before anything is allocated for it, because a
model file may come from anyone. The layout is that of the GGUF specification in the ggml
repository, versions 2 and 3, little-endian. Knows no tensor kinds and does not judge offsets:
edge_export.sources.gguf does.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_runtime.errors import SourceFormatError, UnsupportedModelError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4  # ggml's own limit

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    _BOOL: "|b1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_SCALAR_TYPES = {number: np.dtype(code) for number, code in _SCALARS.items()}

# The least that one entry of the header can take; bounds the counts before any loop.
_MIN_PAIR_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8

DOWNLOAD_HINT = "the file may be a broken or unfinished download: fetch it again"


@dataclass(frozen=True)
class TensorInfo:
    """One entry of the header; ``dimensions`` as stored, fastest first."""

    name: str
    dimensions: tuple[int, ...]
    kind_number: int
    offset: int


def check_start(path: Path, start: bytes, size_bytes: int) -> None:
    """Judge a file by its first 24 bytes or more, before it is mapped.

    Args:
        path: names the file in errors.
        start: its first bytes; fewer than 24 only where the file has no more.
        size_bytes: of the whole file.

    Raises:
        SourceFormatError: it is empty, too short, or another format.
        UnsupportedModelError: a version or byte order that is not read.
    """
    if not start:
        raise SourceFormatError(f"{path} is empty", hint=DOWNLOAD_HINT)
    if start.startswith(b"version https://git-lfs"):
        raise SourceFormatError(
            f"{path} is a Git LFS pointer, not the model", hint="run: git lfs pull"
        )
    if not start.startswith(_MAGIC[: len(start)]):
        raise SourceFormatError(
            f"{path} is not a GGUF file: it begins with {start[:4]!r}, not {_MAGIC!r}",
            hint="GGUF is the format of llama.cpp and ollama models",
        )
    if len(start) < 24:
        raise SourceFormatError(
            f"{path} is truncated: a GGUF header takes 24 bytes, and the file has {size_bytes}",
            hint=DOWNLOAD_HINT,
        )
    (version,) = struct.unpack_from("<I", start, 4)
    if version and version & 0xFFFF == 0:
        raise UnsupportedModelError(
            f"{path} is a big-endian GGUF file", hint="convert it with gguf-convert-endian"
        )
    if version not in _VERSIONS:
        raise UnsupportedModelError(
            f"{path} is GGUF version {version}; versions 2 and 3 are read",
            hint="convert it with a current llama.cpp",
        )


class HeaderReader:
    """A cursor over the header that never passes the end of the file."""

    def __init__(self, path: Path, mapping: mmap.mmap) -> None:
        self.path = path
        self.position = 8  # past the magic and the version, which are checked
        self._mapping = mapping
        self._size = len(mapping)

    def read(self) -> tuple[dict[str, Any], list[TensorInfo]]:
        """The metadata and the tensors' entries; afterwards ``position`` is where the header ends.

        Raises:
            SourceFormatError: truncated, or a count, length or type that cannot be.
            UnsupportedModelError: a list of lists.
        """
        tensor_count = self._u64("the tensor count")
        pair_count = self._u64("the metadata count")
        self._need(
            tensor_count * _MIN_TENSOR_BYTES + pair_count * _MIN_PAIR_BYTES,
            f"a header of {tensor_count} tensors and {pair_count} metadata entries",
        )
        metadata: dict[str, Any] = {}
        for number in range(pair_count):
            key = self._string(f"the key of metadata entry {number}")
            if key in metadata:
                raise self._wrong(f"the metadata key {key!r} appears twice")
            metadata[key] = self._value(key)
        infos = [self._tensor_info(number) for number in range(tensor_count)]
        return metadata, infos

    def _tensor_info(self, number: int) -> TensorInfo:
        name = self._string(f"the name of tensor {number}")
        count = self._u32(f"the dimensions of tensor {name!r}")
        if not 1 <= count <= _MAX_DIMENSIONS:
            raise self._wrong(f"tensor {name!r} has {count} dimensions, not 1 to 4")
        self._need(8 * count + 12, f"the entry of tensor {name!r}")
        dimensions = struct.unpack_from(f"<{count}Q", self._mapping, self.position)
        kind, offset = struct.unpack_from("<IQ", self._mapping, self.position + 8 * count)
        self.position += 8 * count + 12
        return TensorInfo(name, dimensions, kind, offset)

    def _value(self, key: str) -> Any:
        what = f"the value of {key!r}"
        number = self._u32(what)
        if number == _STRING:
            return self._string(what)
        if number == _ARRAY:
            return self._array(key)
        values = self._scalars(number, 1, key)
        return values[0].item()

    def _array(self, key: str) -> list[str] | NDArray[Any]:
        what = f"the list {key!r}"
        number = self._u32(what)
        count = self._u64(what)
        if number == _ARRAY:
            raise UnsupportedModelError(f"{self.path}: {key!r} is a list of lists")
        if number == _STRING:
            return self._strings(count, what)
        return self._scalars(number, count, key)

    def _scalars(self, number: int, count: int, key: str) -> NDArray[Any]:
        dtype = _SCALAR_TYPES.get(number)
        if dtype is None:
            raise self._wrong(f"{key!r} has the value type {number}, which GGUF does not define")
        self._need(count * dtype.itemsize, f"{count} values of {key!r}")
        stored: NDArray[Any]
        if number == _BOOL:
            stored = np.frombuffer(self._mapping, np.uint8, count, self.position) != 0
        else:
            # A copy in the machine's byte order, which lets go of the mapping.
            view = np.frombuffer(self._mapping, dtype, count, self.position)
            stored = view.astype(dtype.newbyteorder("="))
        self.position += count * dtype.itemsize
        return stored

    def _strings(self, count: int, what: str) -> list[str]:
        self._need(count * 8, f"{count} strings of {what}")
        # Vocabularies have 10^5 of these: the loop keeps to local names and one check a string.
        mapping, size, position = self._mapping, self._size, self.position
        length_at = struct.Struct("<Q").unpack_from
        strings: list[str] = []
        for number in range(count):
            start = position + 8
            if start > size:
                self.position = position
                self._need(8, f"string {number} of {what}")
            position = start + length_at(mapping, position)[0]
            if position > size:
                self.position = start
                self._need(position - start, f"string {number} of {what}")
            try:
                strings.append(str(mapping[start:position], "utf-8"))
            except UnicodeDecodeError as exc:
                raise self._wrong(f"string {number} of {what} is not UTF-8") from exc
        self.position = position
        return strings

    def _string(self, what: str) -> str:
        length = self._u64(what)
        self._need(length, what)
        start = self.position
        self.position += length
        try:
            return str(self._mapping[start : self.position], "utf-8")
        except UnicodeDecodeError as exc:
            raise self._wrong(f"{what} is not UTF-8") from exc

    def _u32(self, what: str) -> int:
        self._need(4, what)
        (value,) = struct.unpack_from("<I", self._mapping, self.position)
        self.position += 4
        return int(value)

    def _u64(self, what: str) -> int:
        self._need(8, what)
        (value,) = struct.unpack_from("<Q", self._mapping, self.position)
        self.position += 8
        return int(value)

    def _need(self, count: int, what: str) -> None:
        left = self._size - self.position
        if count > left:
            raise self._wrong(
                f"truncated or damaged: {what} needs {count} bytes at byte {self.position}, "
                f"and {left} are left"
            )

    def _wrong(self, message: str) -> SourceFormatError:
        return SourceFormatError(f"{self.path}: {message}", hint=DOWNLOAD_HINT)
