"""A decoder's weights by role, quantized as the recipe says, with what each became.

Stands between a checkpoint, which knows names and kinds, and the graph, which knows roles. Holds
one layer's arrays at a time at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from edge_export.architectures.spec import DecoderSpec
from edge_export.quantize.blocks import BlockQuantized, concatenate
from edge_export.quantize.recipes import QuantizedGroupStats, Recipe, quantize_tensor
from edge_export.sources.checkpoint import Checkpoint, SourceTensor
from edge_runtime.errors import SourceFormatError

Matrix = tuple[BlockQuantized, "NDArray[np.float32] | None"]


class DecoderWeights:
    """Gives the arrays of each role.

    Args:
        spec: sizes to check against, and the names in the checkpoint.
        checkpoint: where the tensors are.
        recipe: how to store matrices.
        on_tensor: called with a matrix's bytes in the source when it is done.

    Every method raises SourceFormatError where a tensor is missing or of the wrong shape.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        checkpoint: Checkpoint,
        recipe: Recipe,
        *,
        on_tensor: Callable[[int], None],
    ) -> None:
        self._spec = spec
        self._checkpoint = checkpoint
        self._recipe = recipe
        self._on_tensor = on_tensor
        self.stats: list[tuple[str, QuantizedGroupStats]] = []
        """One entry a matrix: its role and what it became."""

    def matrix(self, role: str, layer: int | None = None) -> BlockQuantized:
        """The role's matrix, (out, in), with query and key rows in rotary halves."""
        rows, columns = self._shape(role)
        tensor = self._tensor(role, layer, (rows, columns))
        blocks, stats = quantize_tensor(
            tensor,
            recipe=self._recipe,
            role="embedding" if role in ("embedding", "head") else "linear",
        )
        self.stats.append((role, stats))
        tensor.release()
        self._on_tensor(tensor.size_bytes)
        order = self._row_order(role)
        return blocks if order is None else blocks.permute_rows(order)

    def fused(self, roles: Sequence[str], layer: int) -> list[Matrix]:
        """The roles' matrices and biases, as one where their blocks have the same form.

        One product over stacked rows reads the activations once and costs one operator.
        """
        matrices = [self.matrix(role, layer) for role in roles]
        biases = [self.bias(role, layer) for role in roles]
        forms = {(m.bits, m.block_size, m.zero_points is None) for m in matrices}
        if len(forms) > 1 or len({b is None for b in biases}) > 1:
            return list(zip(matrices, biases, strict=True))
        present = [b for b in biases if b is not None]
        return [(concatenate(matrices), np.concatenate(present) if present else None)]

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
        order = self._row_order(role)
        return bias if order is None else bias[order]

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

    def _row_order(self, role: str) -> NDArray[np.int64] | None:
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
