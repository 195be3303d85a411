"""A decoder's weights by role, as float32, in the row order that the graph computes in.

Stands between a checkpoint, which knows names and kinds, and whoever knows roles. Quantizes
nothing, and holds no array between calls.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_export.architectures.spec import DecoderSpec
from edge_export.sources.checkpoint import Checkpoint, SourceTensor
from edge_runtime.errors import SourceFormatError


class SourceWeights:
    """Gives a checkpoint's tensors and values for each role.

    Args:
        spec: sizes to check against, and the names in the checkpoint.
        checkpoint: where the tensors are.

    Every method raises SourceFormatError where a tensor is missing or of the wrong shape.
    """

    def __init__(self, spec: DecoderSpec, checkpoint: Checkpoint) -> None:
        self._spec = spec
        self._checkpoint = checkpoint

    def tensor(self, role: str, layer: int | None = None) -> SourceTensor:
        """The role's matrix, (out, in), with its rows in the source's order."""
        return self._tensor(role, layer, self._shape(role))

    def matrix(self, role: str, layer: int | None = None) -> NDArray[np.float32]:
        """The role's matrix, float32 (out, in), with query and key rows in rotary halves."""
        tensor = self.tensor(role, layer)
        values = tensor.array()
        tensor.release()
        order = self.row_order(role)
        return values if order is None else values[order]

    def embed(self, token_ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """The embedding's rows of some tokens, float32 (tokens, hidden)."""
        tensor = self.tensor("embedding")
        wanted, where = np.unique(token_ids, return_inverse=True)
        rows = np.concatenate([tensor.rows(int(i), int(i) + 1) for i in wanted])
        tensor.release()
        embedded: NDArray[np.float32] = rows[where]
        return embedded

    def vector(self, role: str, layer: int | None = None) -> NDArray[np.float32]:
        """A norm's weights as they multiply, float32 (width,)."""
        tensor = self._named(self._spec.name(role, layer))
        width = self._norm_width(role)
        _check_shape(tensor, (width,))
        gamma = self._in_halves(tensor.array(), role)
        if self._spec.norm_offset:
            gamma += np.float32(self._spec.norm_offset)
        return gamma

    def vector_bias(self, role: str, layer: int | None = None) -> NDArray[np.float32] | None:
        """A norm's bias, float32 (width,), or None where the checkpoint has none."""
        name = _bias_name(self._spec.name(role, layer))
        if name not in self._checkpoint.tensors:
            return None
        tensor = self._checkpoint.tensors[name]
        _check_shape(tensor, (self._norm_width(role),))
        return self._in_halves(tensor.array(), role)

    def bias(self, role: str, layer: int | None = None) -> NDArray[np.float32] | None:
        """The role's bias, float32 (out,), or None where the checkpoint has none."""
        name = _bias_name(self._spec.name(role, layer))
        if name not in self._checkpoint.tensors:
            return None
        rows, _ = self._shape(role)
        tensor = self._checkpoint.tensors[name]
        start, stop = self._spec.row_slices.get(role, (0, rows))
        _check_shape(tensor, (self._rows_of(role, rows),))
        bias = tensor.array()[start:stop]
        order = self.row_order(role)
        return bias if order is None else bias[order]

    def row_order(self, role: str) -> NDArray[np.int64] | None:
        """For interleaved query and key rows: which row goes where so that halves rotate."""
        if not self._spec.interleaved_rows or role not in ("query", "key"):
            return None
        heads = self._spec.heads if role == "query" else self._spec.kv_heads
        size = self._spec.head_size
        order: NDArray[np.int64] = np.arange(heads)[:, None] * size + self._halves()
        return order.reshape(-1)

    def _halves(self) -> NDArray[np.int64]:
        """Which of a head's interleaved dimensions goes where so that halves rotate."""
        rotary = self._spec.rotary.dimensions
        return np.concatenate(
            [
                np.arange(0, rotary, 2),
                np.arange(1, rotary, 2),
                np.arange(rotary, self._spec.head_size),
            ]
        )

    def _in_halves(self, values: NDArray[np.float32], role: str) -> NDArray[np.float32]:
        """A norm's values in the order of the rows that it norms."""
        if not self._spec.interleaved_rows or role not in ("query_norm", "key_norm"):
            return values
        if self._spec.query_key_norm == "head":
            return values[self._halves()]
        order = self.row_order(role.removesuffix("_norm"))
        return values if order is None else values[order]

    def _norm_width(self, role: str) -> int:
        s = self._spec
        if role not in ("query_norm", "key_norm"):
            return s.hidden_size
        if s.query_key_norm == "head":
            return s.head_size
        return s.head_size * (s.heads if role == "query_norm" else s.kv_heads)

    def _rows_of(self, role: str, rows: int) -> int:
        """Rows of the tensor that the role's rows lie in."""
        if role not in self._spec.row_slices:
            return rows
        shared = self._spec.tensor_names[role]
        sharers = [r for r, name in self._spec.tensor_names.items() if name == shared]
        return max(self._spec.row_slices[r][1] for r in sharers)

    def _shape(self, role: str) -> tuple[int, int]:
        s = self._spec
        attention, kv = s.heads * s.head_size, s.kv_heads * s.head_size
        return {
            "embedding": (s.vocabulary_size, s.hidden_size),
            "head": (s.vocabulary_size, s.hidden_size),
            "query": (attention, s.hidden_size),
            "key": (kv, s.hidden_size),
            "value": (kv, s.hidden_size),
            "attention_output": (s.hidden_size, attention),
            "gate": (s.feed_forward_size, s.hidden_size),
            "up": (s.feed_forward_size, s.hidden_size),
            "down": (s.hidden_size, s.feed_forward_size),
        }[role]

    def _tensor(self, role: str, layer: int | None, shape: tuple[int, int]) -> SourceTensor:
        tensor = self._named(self._spec.name(role, layer))
        rows, columns = shape
        _check_shape(tensor, (self._rows_of(role, rows), columns))
        if role not in self._spec.row_slices:
            return tensor
        return RowSlice(tensor, *self._spec.row_slices[role])

    def _named(self, name: str) -> SourceTensor:
        if name not in self._checkpoint.tensors:
            raise SourceFormatError(f"the tensor {name} is missing")
        return self._checkpoint.tensors[name]


@dataclass(frozen=True)
class RowSlice:
    """Rows ``start`` to ``stop`` of a tensor, as a tensor."""

    whole: SourceTensor
    start: int
    stop: int

    @property
    def name(self) -> str:
        """The whole tensor's name."""
        return self.whole.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Row-major dimensions."""
        return (self.row_count, *self.whole.shape[1:])

    @property
    def kind(self) -> str:
        """How the source stores a value."""
        return self.whole.kind

    @property
    def size_bytes(self) -> int:
        """Bytes that these rows take in the source."""
        return self.whole.size_bytes // self.whole.row_count * self.row_count

    @property
    def row_count(self) -> int:
        """How many rows."""
        return self.stop - self.start

    def raw_rows(self, start: int, stop: int) -> NDArray[np.uint8]:
        """As the whole tensor's."""
        return self.whole.raw_rows(self.start + start, self.start + stop)

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """As the whole tensor's."""
        return self.whole.rows(self.start + start, self.start + stop)

    def array(self) -> NDArray[np.float32]:
        """As the whole tensor's."""
        return self.rows(0, self.row_count).reshape(self.shape)

    def release(self) -> None:
        """As the whole tensor's."""
        self.whole.release()


def _bias_name(weight_name: str) -> str:
    return weight_name.removesuffix(".weight") + ".bias"


def _check_shape(tensor: SourceTensor, expected: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != expected:
        raise SourceFormatError(
            f"the tensor {tensor.name} has shape {tuple(tensor.shape)}, expected {expected}"
        )
