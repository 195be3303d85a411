"""A linear layer over quantized or plain weights, and the embedding that may share its table.

Knows blocks, plain matrices, biases and the operators that read them; knows no model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_export.graph.builder import GraphBuilder
from edge_export.quantize.blocks import MEAN_OF, BlockQuantized

# Selects integer compute in MatMulNBits: activations are quantized a block at a time. Lower levels
# are several times slower on every CPU.
_INTEGER_COMPUTE = 4


@dataclass(frozen=True)
class StoredBlocks:
    """Block-quantized weights that are already in the weights file, by their names there."""

    values: str
    scales: str
    zero_points: str  # "" where the zero point is the middle of the range
    bits: int
    block_size: int
    rows: int
    columns: int
    mean_columns: int  # further columns, which multiply means of 32 inputs; mostly 0


@dataclass(frozen=True)
class StoredMatrix:
    """A float32 matrix (out, in) that is already in the weights file."""

    values: str


Stored = StoredBlocks | StoredMatrix


def store(op: GraphBuilder, matrix: BlockQuantized | NDArray[np.float32]) -> Stored:
    """Write a matrix to the weights file under the builder's scope."""
    if isinstance(matrix, BlockQuantized):
        return store_blocks(op, matrix)
    return StoredMatrix(op.weight("values", matrix))


def store_blocks(op: GraphBuilder, blocks: BlockQuantized) -> StoredBlocks:
    """Write blocks to the weights file under the builder's scope."""
    rows, columns = blocks.shape
    zero_points = "" if blocks.zero_points is None else op.weight("zero_points", blocks.zero_points)
    return StoredBlocks(
        values=op.weight("values", blocks.values),
        scales=op.weight("scales", blocks.scales),
        zero_points=zero_points,
        bits=blocks.bits,
        block_size=blocks.block_size,
        rows=rows,
        columns=columns,
        mean_columns=columns // MEAN_OF if blocks.mean_blocks else 0,
    )


def linear(
    op: GraphBuilder,
    x: str,
    weights: Stored,
    bias: NDArray[np.float32] | None = None,
) -> str:
    """``x @ weights.T + bias``: (..., columns) -> (..., rows)."""
    if isinstance(weights, StoredMatrix):
        # MatMul wants (in, out), which an embedding that shares the table does not.
        plain = op.FusedMatMul(x, weights.values, transB=1)
        return plain if bias is None else op.Add(plain, op.weight("bias", bias))
    if weights.mean_columns:
        # Not AveragePool, which refuses a step in which no position's logits are wanted.
        groups = np.array([0, 0, weights.mean_columns, MEAN_OF], np.int64)
        last = op.constant("last_axis", np.array([-1], np.int64))
        means = op.ReduceMean(op.Reshape(x, op.constant("groups", groups)), last, keepdims=0)
        x = op.Concat(x, means, axis=-1)
    inputs = [x, weights.values, weights.scales, weights.zero_points]
    if bias is not None:
        inputs += ["", op.weight("bias", bias)]
    while inputs[-1] == "":
        inputs.pop()
    (product,) = op.node(
        "MatMulNBits",
        inputs,
        outputs=1,
        K=weights.columns + weights.mean_columns,
        N=weights.rows,
        bits=weights.bits,
        block_size=weights.block_size,
        accuracy_level=_INTEGER_COMPUTE,
    )
    return product


def embedding(op: GraphBuilder, ids: str, table: Stored) -> str:
    """Rows of ``table``: int64 (B, S) -> float32 (B, S, columns).

    A head that shares the table reads the same bytes: MatMulNBits wants them as (rows, blocks,
    bytes) and GatherBlockQuantized as (rows, bytes), so a second name over the same extent of the
    weights file serves the second shape. A Reshape would be folded at load, into a copy.
    """
    if isinstance(table, StoredMatrix):
        return op.Gather(table.values, ids, axis=0)
    row_bytes = table.columns * table.bits // 8
    values = op.view("values_by_row", table.values, (table.rows, row_bytes))
    inputs = [values, ids, table.scales]
    if table.zero_points:
        inputs.append(table.zero_points)
    return op.GatherBlockQuantized(
        *inputs,
        bits=table.bits,
        block_size=table.block_size,
        gather_axis=0,
        quantize_axis=1,
    )
