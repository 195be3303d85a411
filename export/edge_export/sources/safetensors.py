"""Read a safetensors file through a memory map: its header, and its tensors row by row.

The format (safetensors specification): eight bytes of header length, a JSON header that names each
tensor's type, shape and byte range, then the data. Every range is checked against the file before
it is handed out. Knows no configuration and no directory: edge_export.sources.hugging_face does.
"""

from __future__ import annotations

import json
import mmap
import stat
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_export.sources.checkpoint import SourceTensor
from edge_runtime.errors import ModelNotFoundError, SourceFormatError, UnsupportedModelError

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the specification's own bound
_VALUE_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
}
_DAMAGED = "the file is damaged or was not downloaded whole: fetch it again"
# What Git LFS leaves where the file itself was not fetched.
_LFS_POINTER = b"version https://git-lfs"


@dataclass(frozen=True)
class SafetensorsFile:
    """An open file: its mapping, and its tensors by name."""

    mapping: mmap.mmap
    tensors: dict[str, SourceTensor]

    def close(self) -> None:
        """Let go of the mapping; a view that is still alive keeps it until it goes."""
        try:
            self.mapping.close()
        except BufferError:
            return


def open_safetensors(path: Path) -> SafetensorsFile:
    """Open a file; reads its header only.

    Raises:
        ModelNotFoundError: nothing is at ``path``.
        SourceFormatError: not a regular file, not safetensors, truncated or inconsistent.
        UnsupportedModelError: a value type that the specification has not had so far.
    """
    mapping = _map_file(path)
    try:
        header, data_start = _read_header(path, mapping)
        tensors: dict[str, SourceTensor] = {
            name: _locate(path, mapping, name, entry, data_start)
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except BaseException:
        mapping.close()
        raise
    return SafetensorsFile(mapping, tensors)


@dataclass(frozen=True)
class _MappedTensor:
    """A tensor inside the mapping."""

    name: str
    shape: tuple[int, ...]
    kind: str
    size_bytes: int
    offset: int
    mapping: mmap.mmap

    @property
    def row_count(self) -> int:
        return prod(self.shape[:-1])

    def raw_rows(self, start: int, stop: int) -> NDArray[np.uint8]:
        if not 0 <= start <= stop <= self.row_count:
            raise IndexError(f"{self.name}: rows {start}:{stop} of {self.row_count}")
        row_bytes = self.size_bytes // self.row_count
        flat = np.frombuffer(
            self.mapping,
            dtype=np.uint8,
            count=(stop - start) * row_bytes,
            offset=self.offset + start * row_bytes,
        )
        return flat.reshape(stop - start, row_bytes)

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        raw = self.raw_rows(start, stop)
        if self.kind == "BF16":
            # bfloat16 is the upper half of a float32.
            wide = raw.view("<u2").astype(np.uint32)
            wide <<= np.uint32(16)
            return wide.view(np.float32)
        if self.kind not in ("F16", "F32", "F64"):
            raise UnsupportedModelError(
                f"tensor {self.name!r} is stored as {self.kind}, which has no decoder here",
                hint="use the checkpoint in bfloat16, float16 or float32",
            )
        with np.errstate(over="ignore"):  # whoever needs finite values checks for them
            return raw.view(f"<f{_VALUE_BYTES[self.kind]}").astype(np.float32)

    def array(self) -> NDArray[np.float32]:
        return self.rows(0, self.row_count).reshape(self.shape)

    def release(self) -> None:
        if not hasattr(self.mapping, "madvise") or self.mapping.closed:
            return
        start = self.offset - self.offset % mmap.PAGESIZE
        self.mapping.madvise(mmap.MADV_DONTNEED, start, self.offset + self.size_bytes - start)


def _map_file(path: Path) -> mmap.mmap:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise SourceFormatError(f"{path} is not a regular file")
        if status.st_size < _LENGTH_BYTES:
            raise SourceFormatError(f"{path} has {status.st_size} bytes", hint=_DAMAGED)
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError as exc:
        raise ModelNotFoundError(f"{path} does not exist") from exc
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        raise SourceFormatError(f"{path} cannot be read: {reason}") from exc


def _read_header(path: Path, mapping: mmap.mmap) -> tuple[dict[str, Any], int]:
    """The header, and where the data begins."""
    if mapping[: len(_LFS_POINTER)] == _LFS_POINTER:
        raise SourceFormatError(
            f"{path} is a Git LFS pointer, not the file itself", hint="run: git lfs pull"
        )
    length = int.from_bytes(mapping[:_LENGTH_BYTES], "little")
    if length > min(_MAX_HEADER_BYTES, len(mapping) - _LENGTH_BYTES):
        raise SourceFormatError(
            f"{path} is not a safetensors file: its header would have {length} bytes",
            hint=_DAMAGED,
        )
    end = _LENGTH_BYTES + length
    try:
        header = json.loads(mapping[_LENGTH_BYTES:end].decode("utf-8"))
    except (ValueError, RecursionError) as exc:
        raise SourceFormatError(
            f"{path} is not a safetensors file: its header is not JSON", hint=_DAMAGED
        ) from exc
    if not isinstance(header, dict):
        raise SourceFormatError(f"{path}: the header is no object", hint=_DAMAGED)
    return header, end


def _locate(path: Path, mapping: mmap.mmap, name: str, entry: Any, data_start: int) -> SourceTensor:
    """Check an entry of the header against the file and give it its place in the mapping."""
    where = f"{path}: tensor {name!r:.100}"
    if not isinstance(entry, dict):
        raise SourceFormatError(f"{where} has no description", hint=_DAMAGED)
    kind = entry.get("dtype")
    shape, extent = _counts(entry.get("shape")), _counts(entry.get("data_offsets"))
    if shape is None or extent is None or len(extent) != 2:
        raise SourceFormatError(f"{where} has no shape and place", hint=_DAMAGED)
    if kind not in _VALUE_BYTES:
        raise UnsupportedModelError(f"{where} is of the type {kind!r:.40}, which is not known")
    begin, end = extent
    size_bytes = prod(shape) * _VALUE_BYTES[kind]
    if end - begin != size_bytes:
        raise SourceFormatError(
            f"{where} takes {end - begin} bytes, and its shape {size_bytes}", hint=_DAMAGED
        )
    if data_start + end > len(mapping):
        raise SourceFormatError(
            f"{path}: truncated: tensor {name!r:.100} ends at {data_start + end}, and the file at "
            f"{len(mapping)}",
            hint=_DAMAGED,
        )
    return _MappedTensor(
        name=name,
        shape=tuple(shape),
        kind=kind,
        size_bytes=size_bytes,
        offset=data_start + begin,
        mapping=mapping,
    )


def _counts(value: Any) -> list[int] | None:
    """The list, if it is one of whole numbers from 0 on that a file could have."""
    if isinstance(value, list) and all(
        isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**48 for n in value
    ):
        return value
    return None
