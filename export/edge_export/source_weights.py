"""A decoder's weights by role, as float32, in the row order that the graph computes in.

Stands between a checkpoint, which knows names and kinds, and whoever knows roles. Quantizes
nothing, and holds no array between calls.
"""

from __future__ import annotations

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
        """A norm's weights, float32 (hidden,)."""
        return self._tensor(role, layer, (self._spec.hidden_size,)).array()

    def bias(self, role: str, layer: int | None = None) -> NDArray[np.float32] | None:
        """The role's bias, float32 (out,), or None where the checkpoint has none."""
        name = self._spec.name(role, layer).replace(".weight", ".bias")
        if name not in self._checkpoint.tensors:
            return None
        rows, _ = self._shape(role)
        tensor = self._checkpoint.tensors[name]
        _check_shape(tensor, (rows,))
        bias = tensor.array()
        order = self.row_order(role)
        return bias if order is None else bias[order]

    def row_order(self, role: str) -> NDArray[np.int64] | None:
        """For interleaved query and key rows: which row goes where so that halves rotate."""
        if not self._spec.interleaved_rows or role not in ("query", "key"):
            return None
        heads = self._spec.heads if role == "query" else self._spec.kv_heads
        rotary, size = self._spec.rotary.dimensions, self._spec.head_size
        within = np.concatenate(
            [np.arange(0, rotary, 2), np.arange(1, rotary, 2), np.arange(rotary, size)]
        )
        order: NDArray[np.int64] = (np.arange(heads)[:, None] * size + within).reshape(-1)
        return order

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

    def _tensor(self, role: str, layer: int | None, shape: tuple[int, ...]) -> SourceTensor:
        name = self._spec.name(role, layer)
        if name not in self._checkpoint.tensors:
            raise SourceFormatError(f"the tensor {name} is missing")
        tensor = self._checkpoint.tensors[name]
        _check_shape(tensor, shape)
        return tensor


def _check_shape(tensor: SourceTensor, expected: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != expected:
        raise SourceFormatError(
            f"the tensor {tensor.name} has shape {tuple(tensor.shape)}, expected {expected}"
        )
