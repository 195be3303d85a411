"""What every source of weights looks like to the rest of the export.

A checkpoint is metadata (plain Python values) and tensors that are read a few rows at a time, so
that a model larger than memory can pass through. Knows no file format and no architecture: names
and metadata keys are the source's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class SourceTensor(Protocol):
    """One tensor of a checkpoint, read lazily.

    ``shape`` is row-major, as numpy has it: a linear layer is (out_features, in_features). Rows
    are those of the tensor seen as a matrix: every dimension but the last is folded into one, and
    a vector is one row.
    """

    @property
    def name(self) -> str:
        """The source's own name, such as ``blk.0.attn_q.weight``."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Row-major dimensions."""

    @property
    def kind(self) -> str:
        """How the source stores a value: ``F32``, ``F16``, ``Q4_1``, ..."""

    @property
    def size_bytes(self) -> int:
        """Bytes that the tensor takes in the source."""

    @property
    def row_count(self) -> int:
        """Rows of the tensor seen as a matrix."""

    def raw_rows(self, start: int, stop: int) -> NDArray[np.uint8]:
        """The stored bytes of rows ``start`` to ``stop``.

        Returns:
            uint8 [rows, bytes per row], read-only; a view where the source can give one.
        """

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """The values of rows ``start`` to ``stop``; nothing else is read.

        Returns:
            float32 [rows, last dimension], the caller's own.

        Raises:
            UnsupportedModelError: the kind has no decoder.
        """

    def array(self) -> NDArray[np.float32]:
        """The whole tensor as float32 in its own shape; meant for small ones.

        Raises:
            UnsupportedModelError: as :meth:`rows`.
        """

    def release(self) -> None:
        """Tell the operating system that the tensor's pages are not wanted soon.

        Views given by :meth:`raw_rows` stay valid.
        """


def _nothing() -> None:
    return None


@dataclass(frozen=True)
class Checkpoint:
    """An open checkpoint; close it, or use it as a context manager.

    Attributes:
        format: the kind of source, such as ``"gguf"``.
        path: the file or directory it was opened from.
        metadata: the source's own keys. Scalars are bool, int, float or str; lists of strings are
            lists; lists of numbers are one-dimensional numpy arrays.
        tensors: by the source's own name, in the source's order.
    """

    format: str
    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, SourceTensor]
    on_close: Callable[[], None] = field(default=_nothing, repr=False, compare=False)

    def close(self) -> None:
        """Let go of the file. Closing twice is harmless."""
        self.on_close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
