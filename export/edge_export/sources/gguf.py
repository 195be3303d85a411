"""Read a GGUF file through a memory map: its metadata, and its tensors row by row.

Every count, length and offset is checked against the file before anything is allocated for it,
because a model file may come from anyone. The layout is that of the GGUF specification in the ggml
repository, versions 2 and 3, little-endian. Values are decoded by the ``gguf`` package. Knows no
architecture: what the keys and names mean is for edge_export.architectures to say.
"""

from __future__ import annotations

import mmap
import stat
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_export.sources.checkpoint import Checkpoint, SourceTensor
from edge_runtime.errors import (
    ExportError,
    ModelNotFoundError,
    SourceFormatError,
    UnsupportedModelError,
)

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4  # ggml's own limit
_DEFAULT_ALIGNMENT = 32
_MAX_ALIGNMENT = 1 << 20

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

_DOWNLOAD_HINT = "the file may be a broken or unfinished download: fetch it again"


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file; reads its header only.

    Args:
        path: the file.

    Returns:
        A checkpoint of format ``"gguf"`` with the file's keys and tensor names.

    Raises:
        ModelNotFoundError: nothing is at ``path``.
        SourceFormatError: it is not a regular file, not GGUF, truncated or inconsistent.
        UnsupportedModelError: a GGUF version, byte order, tensor kind or split that this reader
            has no code for.
        ExportError: the ``gguf`` package is not installed.
    """
    kinds = _known_kinds()
    mapping = _map_file(path)
    try:
        header = _HeaderReader(path, mapping)
        metadata, infos = header.read()
        _refuse_split(path, metadata)
        start = _aligned(header.position, _alignment(path, metadata))
        tensors = _locate(path, mapping, infos, start, _alignment(path, metadata), kinds)
    except BaseException:
        mapping.close()
        raise

    def close() -> None:
        # A view that is still alive holds the mapping open; it goes with the last of them.
        try:
            mapping.close()
        except BufferError:
            return

    return Checkpoint(format="gguf", path=path, metadata=metadata, tensors=tensors, on_close=close)


@dataclass(frozen=True)
class _Kind:
    """A ggml type: ``block`` values are stored in ``block_bytes`` bytes."""

    number: int
    name: str
    block: int
    block_bytes: int


@dataclass(frozen=True)
class _TensorInfo:
    """One entry of the header; ``dimensions`` as stored, fastest first."""

    name: str
    dimensions: tuple[int, ...]
    kind_number: int
    offset: int


@dataclass(frozen=True)
class _GgufTensor:
    """A tensor inside the mapping."""

    name: str
    shape: tuple[int, ...]
    kind: str
    size_bytes: int
    kind_number: int
    row_bytes: int
    offset: int
    mapping: mmap.mmap

    @property
    def row_count(self) -> int:
        return prod(self.shape[:-1])

    def raw_rows(self, start: int, stop: int) -> NDArray[np.uint8]:
        if not 0 <= start <= stop <= self.row_count:
            raise IndexError(f"{self.name}: rows {start}:{stop} of {self.row_count}")
        flat = np.frombuffer(
            self.mapping,
            dtype=np.uint8,
            count=(stop - start) * self.row_bytes,
            offset=self.offset + start * self.row_bytes,
        )
        return flat.reshape(stop - start, self.row_bytes)

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        raw = self.raw_rows(start, stop)
        if self.kind == "F32":
            # A copy, so that no float view keeps the mapping and its pages.
            return raw.view("<f4").astype(np.float32)
        if not len(raw):
            return np.empty((0, self.shape[-1]), np.float32)
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        try:
            # Damaged scales decode to infinities; who needs finite values checks for them.
            with np.errstate(all="ignore"):
                values = dequantize(raw, GGMLQuantizationType(self.kind_number))
        except NotImplementedError as exc:
            raise UnsupportedModelError(
                f"tensor {self.name!r} is stored as {self.kind}, which has no decoder here",
                hint="use another quantization of this model, such as Q4_K_M or Q8_0",
            ) from exc
        return np.ascontiguousarray(values, dtype=np.float32)

    def array(self) -> NDArray[np.float32]:
        return self.rows(0, self.row_count).reshape(self.shape)

    def release(self) -> None:
        if not hasattr(self.mapping, "madvise") or self.mapping.closed:
            return
        # Whole pages only, and of those all that the tensor touches: a neighbour's values on a
        # shared page are simply read again.
        start = self.offset - self.offset % mmap.PAGESIZE
        self.mapping.madvise(mmap.MADV_DONTNEED, start, self.offset + self.size_bytes - start)


def _known_kinds() -> dict[int, _Kind]:
    try:
        from gguf.constants import GGML_QUANT_SIZES
    except ImportError as exc:
        raise ExportError(
            "reading GGUF files needs the gguf package, which is not installed",
            hint="pip install 'edge-runtime[export]'",
        ) from exc
    return {
        int(kind): _Kind(int(kind), str(kind.name), int(block), int(size))
        for kind, (block, size) in GGML_QUANT_SIZES.items()
    }


def _map_file(path: Path) -> mmap.mmap:
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise SourceFormatError(
                f"{path} is a directory, not a GGUF file", hint="name the .gguf file inside it"
            )
        if not stat.S_ISREG(status.st_mode):
            raise SourceFormatError(f"{path} is not a regular file")
        with path.open("rb") as file:
            _check_start(path, file.read(64), status.st_size)
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError as exc:
        raise ModelNotFoundError(f"{path} does not exist") from exc
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        raise SourceFormatError(f"{path} cannot be read: {reason}") from exc


def _check_start(path: Path, start: bytes, size_bytes: int) -> None:
    if not start:
        raise SourceFormatError(f"{path} is empty", hint=_DOWNLOAD_HINT)
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
            hint=_DOWNLOAD_HINT,
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


class _HeaderReader:
    """A cursor over the header that never passes the end of the file."""

    def __init__(self, path: Path, mapping: mmap.mmap) -> None:
        self.path = path
        self.position = 8  # past the magic and the version, which are checked
        self._mapping = mapping
        self._size = len(mapping)

    def read(self) -> tuple[dict[str, Any], list[_TensorInfo]]:
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

    def _tensor_info(self, number: int) -> _TensorInfo:
        name = self._string(f"the name of tensor {number}")
        count = self._u32(f"the dimensions of tensor {name!r}")
        if not 1 <= count <= _MAX_DIMENSIONS:
            raise self._wrong(f"tensor {name!r} has {count} dimensions, not 1 to 4")
        self._need(8 * count + 12, f"the entry of tensor {name!r}")
        dimensions = struct.unpack_from(f"<{count}Q", self._mapping, self.position)
        kind, offset = struct.unpack_from("<IQ", self._mapping, self.position + 8 * count)
        self.position += 8 * count + 12
        return _TensorInfo(name, dimensions, kind, offset)

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
        return SourceFormatError(f"{self.path}: {message}", hint=_DOWNLOAD_HINT)


def _refuse_split(path: Path, metadata: dict[str, Any]) -> None:
    count = metadata.get("split.count", 0)
    if isinstance(count, int) and count > 1:
        raise UnsupportedModelError(
            f"{path} is one of {count} files of a split model",
            hint="join them with: llama-gguf-split --merge FIRST.gguf WHOLE.gguf",
        )


def _alignment(path: Path, metadata: dict[str, Any]) -> int:
    value = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    power_of_two = isinstance(value, int) and value > 0 and value & (value - 1) == 0
    if not power_of_two or value > _MAX_ALIGNMENT:
        raise SourceFormatError(f"{path}: general.alignment is {value!r}, not a power of two")
    return int(value)


def _aligned(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def _locate(
    path: Path,
    mapping: mmap.mmap,
    infos: list[_TensorInfo],
    data_start: int,
    alignment: int,
    kinds: dict[int, _Kind],
) -> dict[str, SourceTensor]:
    """Check each entry against the file and give it its place in the mapping."""
    tensors: dict[str, SourceTensor] = {}
    held = max(len(mapping) - data_start, 0)
    for info in infos:
        if info.name in tensors:
            raise SourceFormatError(f"{path}: tensor {info.name!r} appears twice")
        kind = kinds.get(info.kind_number)
        if kind is None:
            raise UnsupportedModelError(
                f"{path}: tensor {info.name!r} is of ggml type {info.kind_number}, which the "
                "installed gguf package does not know",
                hint="upgrade the gguf package, or use another quantization of this model",
            )
        row, *outer = info.dimensions
        if 0 in info.dimensions or row % kind.block:
            raise SourceFormatError(
                f"{path}: tensor {info.name!r} has the dimensions {info.dimensions}, which do not "
                f"fit {kind.name} blocks of {kind.block}",
                hint=_DOWNLOAD_HINT,
            )
        row_bytes = row // kind.block * kind.block_bytes
        size_bytes = row_bytes * prod(outer)
        if info.offset % alignment:
            raise SourceFormatError(
                f"{path}: tensor {info.name!r} lies at {info.offset}, not a multiple of "
                f"{alignment}",
                hint=_DOWNLOAD_HINT,
            )
        if info.offset + size_bytes > held:
            raise SourceFormatError(
                f"{path}: truncated: tensor {info.name!r} needs {info.offset + size_bytes} bytes "
                f"of tensor data, and the file has {held}",
                hint=_DOWNLOAD_HINT,
            )
        tensors[info.name] = _GgufTensor(
            name=info.name,
            shape=tuple(reversed(info.dimensions)),
            kind=kind.name,
            size_bytes=size_bytes,
            kind_number=kind.number,
            row_bytes=row_bytes,
            offset=data_start + info.offset,
            mapping=mapping,
        )
    return tensors
