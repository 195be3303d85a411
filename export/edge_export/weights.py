"""A decoder's weights by role, quantized as the recipe says, with what each became.

Stands between a source's weights and the graph. Holds one layer's arrays at a time at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Union

import numpy as np
from numpy.typing import NDArray

from edge_export.quantize.blocks import BlockQuantized, concatenate
from edge_export.quantize.calibration import Calibration
from edge_export.quantize.recipes import (
    QuantizedGroupStats,
    Recipe,
    quantize_tensor,
    unquantized_stats,
)
from edge_export.source_weights import SourceWeights

Stored = Union[BlockQuantized, "NDArray[np.float32]"]
"""A matrix (out, in): in blocks, or plain float32."""
Matrix = tuple[Stored, "NDArray[np.float32] | None"]


class DecoderWeights:
    """Gives the arrays of each role.

    Args:
        source: the weights.
        recipe: how to store matrices.
        calibration: what matrices multiply, for 4 bits; they must then be asked for in the order
            of the graph. None rounds each for itself.
        on_tensor: called with a matrix's bytes in the source when it is done.

    Every method raises SourceFormatError where a tensor is missing or of the wrong shape.
    """

    def __init__(
        self,
        source: SourceWeights,
        recipe: Recipe,
        *,
        calibration: Calibration | None = None,
        on_tensor: Callable[[int], None],
    ) -> None:
        self._source = source
        self._recipe = recipe
        self._calibration = calibration
        self._on_tensor = on_tensor
        self.stats: list[tuple[str, QuantizedGroupStats]] = []
        """One entry a matrix: its role and what it became."""

    def matrix(self, role: str, layer: int | None = None) -> Stored:
        """The role's matrix, (out, in), with query and key rows in rotary halves."""
        tensor = self._source.tensor(role, layer)
        if self._recipe == "f32":
            values = self._source.matrix(role, layer)
            self.stats.append((role, unquantized_stats(tensor, values)))
            self._on_tensor(tensor.size_bytes)
            return values
        blocks, stats = quantize_tensor(
            tensor,
            recipe=self._recipe,
            role="embedding" if role in ("embedding", "head") else "linear",
            # Without calibration a 4-bit head costs as much quality as all layers together.
            embedding_bits=8 if self._calibration is None else 4,
            moments=None if self._calibration is None else self._calibration.moments(role),
        )
        self.stats.append((role, stats))
        tensor.release()
        order = self._source.row_order(role)
        if order is not None:
            blocks = blocks.permute_rows(order)
        if self._calibration is not None:
            self._calibration.accept(role, layer, blocks)
        self._on_tensor(tensor.size_bytes)
        return blocks

    def fused(self, roles: Sequence[str], layer: int) -> list[Matrix]:
        """The roles' matrices and biases, as one where their blocks have the same form.

        One product over stacked rows reads the activations once and costs one operator.
        """
        matrices = [self.matrix(role, layer) for role in roles]
        biases = [self.bias(role, layer) for role in roles]
        blocks = [m for m in matrices if isinstance(m, BlockQuantized)]
        forms = {(m.bits, m.block_size, m.zero_points is None, m.mean_blocks) for m in blocks}
        if len(forms) > 1 or len({b is None for b in biases}) > 1:
            return list(zip(matrices, biases, strict=True))
        present = [b for b in biases if b is not None]
        bias = np.concatenate(present) if present else None
        if blocks:
            return [(concatenate(blocks), bias)]
        return [(np.concatenate([m for m in matrices if isinstance(m, np.ndarray)]), bias)]

    def vector(self, role: str, layer: int | None = None) -> NDArray[np.float32]:
        """A norm's weights as they multiply, float32 (width,)."""
        return self._source.vector(role, layer)

    def vector_bias(self, role: str, layer: int | None = None) -> NDArray[np.float32] | None:
        """A norm's bias, float32 (width,), or None where the checkpoint has none."""
        return self._source.vector_bias(role, layer)

    def bias(self, role: str, layer: int | None = None) -> NDArray[np.float32] | None:
        """The role's bias, float32 (out,), or None where the checkpoint has none."""
        return self._source.bias(role, layer)
