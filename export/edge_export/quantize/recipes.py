"""Which bits a tensor gets under each recipe, and the pass that brings it there.

``auto`` keeps what the file has: kinds that fit MatMulNBits are carried bit for bit, all others
become 8-bit. ``int4-exact`` also keeps 4-bit kinds with a float minimum in 4 bits, the minimum
beside them. ``int8`` stores everything in 8 bits. ``int4`` stores linear layers in 4 bits, where
the embedding's bits are a choice of their own. ``f32`` stores what the source means in float32, to
compare with; such matrices do not come here. Tensors pass through a slice of rows at a time.
Knows no layer names and no graph; vectors (norms, biases, rope factors) stay float32 and do not
come here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edge_export.quantize.block_means import BLOCK_MEANS_KINDS, carry_with_means
from edge_export.quantize.blocks import BlockQuantized, concatenate
from edge_export.quantize.calibration import ColumnWeights, Moments
from edge_export.quantize.exact import EXACT_BITS, carry_exactly
from edge_export.quantize.float_minimum import FLOAT_MINIMUM_KINDS, carry_float_minimum
from edge_export.quantize.gptq import Compensation, compensated_4_bits
from edge_export.quantize.round_to_nearest import round_to_8_bits, search_4_bits
from edge_export.sources.checkpoint import SourceTensor
from edge_runtime.bundle import QuantizedGroup
from edge_runtime.errors import SourceFormatError, UnsupportedModelError

Recipe = Literal["auto", "int8", "int4", "int4-exact", "f32"]
Role = Literal["linear", "embedding"]

_BLOCK_SIZE = 32
CALIBRATED_BLOCK_SIZE = 64  # compensated for, it loses no more than 32 does otherwise
_SMALLEST_BLOCK_SIZE = 16
# Values of one slice. Its float32 rows, their reconstruction and the search's scratch together
# stay under about 64 MB.
_SLICE_VALUES = 2 << 20


@dataclass(frozen=True)
class QuantizedGroupStats:
    """What became of one tensor, or of several added up.

    Attributes:
        source_kind: ggml kind, or several joined by commas.
        stored_as: such as ``8-bit block 32``, or several joined by commas.
        tensors: how many.
        source_bytes, stored_bytes: their sizes.
        squared_error: sum over all values of the squared difference from the source's own values.
        squared_norm: sum of the source's squared values.
    """

    source_kind: str
    stored_as: str
    tensors: int
    source_bytes: int
    stored_bytes: int
    squared_error: float
    squared_norm: float

    @property
    def relative_error(self) -> float:
        """Root mean square of the error over that of the values; 0 where nothing was lost."""
        if self.squared_error == 0:
            return 0.0
        return float(np.sqrt(self.squared_error / self.squared_norm))

    def as_group(self, name: str) -> QuantizedGroup:
        """The manifest's entry."""
        return QuantizedGroup(
            name=name,
            tensors=self.tensors,
            source_kind=self.source_kind,
            stored_as=self.stored_as,
            source_bytes=self.source_bytes,
            stored_bytes=self.stored_bytes,
            relative_error=self.relative_error,
        )


def add_stats(stats: Iterable[QuantizedGroupStats]) -> QuantizedGroupStats:
    """Several tensors as one group; different kinds are listed in the order they came."""
    items = list(stats)
    return QuantizedGroupStats(
        source_kind=", ".join(dict.fromkeys(item.source_kind for item in items)),
        stored_as=", ".join(dict.fromkeys(item.stored_as for item in items)),
        tensors=sum(item.tensors for item in items),
        source_bytes=sum(item.source_bytes for item in items),
        stored_bytes=sum(item.stored_bytes for item in items),
        squared_error=sum(item.squared_error for item in items),
        squared_norm=sum(item.squared_norm for item in items),
    )


def unquantized_stats(tensor: SourceTensor, values: NDArray[np.float32]) -> QuantizedGroupStats:
    """What became of a tensor that is stored as float32.

    Raises:
        SourceFormatError: a weight is infinite or not a number.
    """
    _check_finite(tensor, 0, values)
    return QuantizedGroupStats(
        source_kind=tensor.kind,
        stored_as="float32",
        tensors=1,
        source_bytes=tensor.size_bytes,
        stored_bytes=values.nbytes,
        squared_error=0.0,
        squared_norm=_sum_of_squares(values),
    )


def quantize_tensor(
    tensor: SourceTensor,
    *,
    recipe: Recipe,
    role: Role = "linear",
    symmetric: bool = False,
    embedding_bits: Literal[4, 8] = 8,
    moments: Moments | ColumnWeights | None = None,
    rows_per_slice: int | None = None,
) -> tuple[BlockQuantized, QuantizedGroupStats]:
    """Bring a matrix to MatMulNBits blocks under a recipe.

    Args:
        tensor: a matrix [N, K].
        recipe: ``auto``, ``int8`` or ``int4``.
        role: ``embedding`` for the token table and a head, ``linear`` for the rest.
        symmetric: store 4-bit weights without zero points; ARM's fast kernels want that.
        embedding_bits: of the ``embedding`` role under ``int4``.
        moments: of what the matrix multiplies; rounding to 4 bits then keeps the error of the
            product small, in larger blocks. None keeps that of the weights small.
        rows_per_slice: rows held as float32 at one time; None for what keeps memory small.

    Returns:
        The blocks, in the source's row order, and what was lost.

    Raises:
        SourceFormatError: a weight is infinite or not a number.
        UnsupportedModelError: the kind has no decoder, or rows are no multiple of 16.
    """
    if len(tensor.shape) != 2:
        raise UnsupportedModelError(
            f"tensor {tensor.name!r} has the shape {tensor.shape}, and only matrices are quantized"
        )
    columns = tensor.shape[1]
    step = rows_per_slice or max(1, _SLICE_VALUES // columns)
    bits = _bits(tensor.kind, recipe, role, embedding_bits)
    if EXACT_BITS.get(tensor.kind, 9) <= bits:
        return _carry_all(tensor, bits, step)
    # A table that is gathered from has no inputs to take means of.
    if recipe == "int4-exact" and role == "linear" and tensor.kind in BLOCK_MEANS_KINDS:
        return _convert_all(tensor, step, lambda raw, _: carry_with_means(raw, tensor.kind))
    if bits == 8 and tensor.kind in FLOAT_MINIMUM_KINDS:
        return _convert_all(tensor, step, lambda raw, _: carry_float_minimum(raw, tensor.kind))
    if bits == 8:
        block_size = _block_size(tensor, _BLOCK_SIZE)
        return _convert_all(
            tensor, step, lambda _, values: round_to_8_bits(values, block_size=block_size)
        )
    return _to_4_bits(tensor, step, role, moments, symmetric=symmetric)


def _to_4_bits(
    tensor: SourceTensor,
    step: int,
    role: Role,
    moments: Moments | ColumnWeights | None,
    *,
    symmetric: bool,
) -> tuple[BlockQuantized, QuantizedGroupStats]:
    compensation = Compensation.of(moments) if isinstance(moments, Moments) else None
    block_size = _block_size(tensor, _BLOCK_SIZE if compensation is None else CALIBRATED_BLOCK_SIZE)
    # onnxruntime 1.23 gathers wrongly from a table whose rows have an odd number of packed zero
    # points: without any, it gathers rightly.
    if role == "embedding" and tensor.shape[1] // block_size % 2 and not symmetric:
        if block_size > _BLOCK_SIZE:
            block_size //= 2  # zero points are worth more than the smaller blocks cost
        else:
            symmetric = True
    if compensation is not None:
        how = compensation
        return _convert_all(
            tensor,
            step,
            lambda _, values: compensated_4_bits(
                values, how, block_size=block_size, symmetric=symmetric
            ),
        )
    importance = _importance(moments)
    return _convert_all(
        tensor,
        step,
        lambda _, values: search_4_bits(
            values, block_size=block_size, symmetric=symmetric, importance=importance
        ),
    )


def _bits(kind: str, recipe: Recipe, role: Role, embedding_bits: int) -> int:
    if recipe in ("auto", "int4-exact"):
        return EXACT_BITS.get(kind, 8)
    if recipe == "int8":
        return 8
    return embedding_bits if role == "embedding" else 4


def _importance(moments: Moments | ColumnWeights | None) -> NDArray[np.float32] | None:
    """Each column's, where moments are too wide to compensate with; None where they say nothing."""
    if moments is None or not np.isfinite(moments.importance).all():
        return None
    return moments.importance if moments.importance.any() else None


def _block_size(tensor: SourceTensor, wanted: int) -> int:
    """The largest up to ``wanted`` that divides a row; smaller blocks cost more scales."""
    columns = tensor.shape[1]
    while columns % wanted:
        wanted //= 2
    if wanted < _SMALLEST_BLOCK_SIZE:
        raise UnsupportedModelError(
            f"tensor {tensor.name!r} has rows of {columns} values, "
            f"not a multiple of {_SMALLEST_BLOCK_SIZE}"
        )
    return wanted


def _carry_all(
    tensor: SourceTensor, bits: int, step: int
) -> tuple[BlockQuantized, QuantizedGroupStats]:
    parts: list[BlockQuantized] = []
    squared_norm = 0.0
    for start in range(0, tensor.row_count, step):
        raw = tensor.raw_rows(start, min(start + step, tensor.row_count))
        part = carry_exactly(raw, tensor.kind)
        parts.append(part if bits == part.bits else part.in_8_bits())
        _check_finite(tensor, start, parts[-1].scales)
        squared_norm += _sum_of_squares(part.dequantize())
        tensor.release()
    return _finish(tensor, parts, 0.0, squared_norm)


def _convert_all(
    tensor: SourceTensor,
    step: int,
    convert: Callable[[NDArray[np.uint8], NDArray[np.float32]], BlockQuantized],
) -> tuple[BlockQuantized, QuantizedGroupStats]:
    parts: list[BlockQuantized] = []
    squared_error = squared_norm = 0.0
    for start in range(0, tensor.row_count, step):
        stop = min(start + step, tensor.row_count)
        values = tensor.rows(start, stop)
        _check_finite(tensor, start, values)
        parts.append(convert(tensor.raw_rows(start, stop), values))
        squared_norm += _sum_of_squares(values)
        values -= parts[-1].dequantize()
        squared_error += _sum_of_squares(values)
        tensor.release()
    return _finish(tensor, parts, squared_error, squared_norm)


def _finish(
    tensor: SourceTensor, parts: list[BlockQuantized], squared_error: float, squared_norm: float
) -> tuple[BlockQuantized, QuantizedGroupStats]:
    whole = parts[0] if len(parts) == 1 else concatenate(parts)
    stats = QuantizedGroupStats(
        source_kind=tensor.kind,
        stored_as=whole.stored_as,
        tensors=1,
        source_bytes=tensor.size_bytes,
        stored_bytes=whole.nbytes,
        squared_error=squared_error,
        squared_norm=squared_norm,
    )
    return whole, stats


def _check_finite(tensor: SourceTensor, start: int, values: NDArray[np.float32]) -> None:
    """``values`` has a row for each row from ``start`` on."""
    bad = ~np.isfinite(values).all(axis=1)
    if bad.any():
        raise SourceFormatError(
            f"tensor {tensor.name!r} has an infinite weight or one that is not a number, "
            f"in row {start + int(bad.argmax())}",
            hint="the file is damaged, or its makers' training went wrong: use another file",
        )


def _sum_of_squares(values: NDArray[np.float32]) -> float:
    return float(np.vdot(values, values))
