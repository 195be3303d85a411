"""Read a GGUF file through a memory map: its metadata, and its tensors row by row.

Every tensor's kind, size and offset is checked against the file before it is handed out; the header
itself is read by edge_export.sources.gguf_header. Values are decoded by the ``gguf`` package. Knows
no architecture: what the keys and names mean is for edge_export.architectures to say.
"""

from __future__ import annotations

import mmap
import stat
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_export.sources.checkpoint import Checkpoint, SourceTensor
from edge_export.sources.gguf_header import DOWNLOAD_HINT, HeaderReader, TensorInfo, check_start
from edge_runtime.errors import (
    ExportError,
    ModelNotFoundError,
    SourceFormatError,
    UnsupportedModelError,
)

_DEFAULT_ALIGNMENT = 32
_MAX_ALIGNMENT = 1 << 20


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
        header = HeaderReader(path, mapping)
        metadata, infos = header.read()
        _refuse_split(path, metadata)
        alignment = _alignment(path, metadata)
        data_start = -(-header.position // alignment) * alignment
        tensors = _locate(path, mapping, infos, data_start, alignment, kinds)
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
            check_start(path, file.read(64), status.st_size)
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError as exc:
        raise ModelNotFoundError(f"{path} does not exist") from exc
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        raise SourceFormatError(f"{path} cannot be read: {reason}") from exc


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


def _locate(
    path: Path,
    mapping: mmap.mmap,
    infos: list[TensorInfo],
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
                hint=DOWNLOAD_HINT,
            )
        row_bytes = row // kind.block * kind.block_bytes
        size_bytes = row_bytes * prod(outer)
        if info.offset % alignment:
            raise SourceFormatError(
                f"{path}: tensor {info.name!r} lies at {info.offset}, not a multiple of "
                f"{alignment}",
                hint=DOWNLOAD_HINT,
            )
        if info.offset + size_bytes > held:
            raise SourceFormatError(
                f"{path}: truncated: tensor {info.name!r} needs {info.offset + size_bytes} bytes "
                f"of tensor data, and the file has {held}",
                hint=DOWNLOAD_HINT,
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
