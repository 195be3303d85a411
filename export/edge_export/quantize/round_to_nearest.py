"""Turn float rows into 4- or 8-bit blocks by rounding to the nearest code.

8 bits span a block's extremes. 4 bits search: a few narrower and wider ranges, each scored by the
squared error that remains after a least-squares refit of its scale. On a real Q4_1 file that takes
the relative error of 4 bits from 8.3 % (extremes alone) to 6.9 %, and to 7.7 % without zero points.
Zero points are whole numbers, since float ones cost MatMulNBits its fast kernels. Knows no files,
kinds or layers; what an error in a column costs may be given as ``importance``.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from edge_export.quantize.blocks import BlockQuantized

# The tried scales, as parts of what spans the block. Below 1 the extremes clip, which pays at 4
# bits; above 1 the grid is coarser, and its whole zero point may lie better.
_ASYMMETRIC_RANGES = (1.0, 0.93, 0.85, 1.07, 1.14, 1.2)
# A few important columns are worth clipping the others far more.
_IMPORTANCE_RANGES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 1.1, 1.2)
_ZERO_POINT_SHIFTS = (0, -1, 1, -2, 2)
_CALIBRATED_RANGES, _CALIBRATED_SHIFTS = (1.0, 0.9, 0.8, 0.7, 1.1), (0, -1, 1)
# With a fixed zero point the codes reach further below zero than above, so either sign is tried.
_SYMMETRIC_RANGES = (1.0, 0.95, 0.9, 0.85, -1.15, -1.1, -1.05, -1.0, -0.95)
_SYMMETRIC_IMPORTANCE_RANGES = (
    *(1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5),
    *(-1.15, -1.1, -1.05, -1.0, -0.95, -0.9, -0.8, -0.7, -0.6, -0.5),
)

_BLOCKS_AT_ONCE = 4096  # their float32 values stay in a core's cache
_SMALLEST = np.float32(1e-30)  # a block below this is zero; its scale would be denormal


def round_to_8_bits(values: NDArray[np.float32], *, block_size: int) -> BlockQuantized:
    """Round between each block's extremes, with zero points.

    Args:
        values: float32 [N, K], finite; K a multiple of ``block_size``.
        block_size: a power of two from 16 to 256.
    """
    return _quantize(values, block_size, bits=8, symmetric=False, importance=None)


def search_4_bits(
    values: NDArray[np.float32],
    *,
    block_size: int,
    symmetric: bool = False,
    importance: NDArray[np.float32] | None = None,
) -> BlockQuantized:
    """Find 4-bit blocks of small squared error.

    Args:
        values: float32 [N, K], finite; K a multiple of ``block_size``.
        block_size: a power of two from 16 to 256.
        symmetric: whether every zero point is 8, and none is stored.
        importance: float32 [K], not negative: the weight of a squared error in each column, such
            as the mean square of what the column is multiplied by; None for equal weights.
    """
    return _quantize(values, block_size, bits=4, symmetric=symmetric, importance=importance)


def _quantize(
    values: NDArray[np.float32],
    block_size: int,
    *,
    bits: int,
    symmetric: bool,
    importance: NDArray[np.float32] | None,
) -> BlockQuantized:
    rows, columns = values.shape
    row_blocks, rest = divmod(columns, block_size)
    if rest:
        raise ValueError(f"rows of {columns} are no whole blocks of {block_size}")
    blocks = values.reshape(rows * row_blocks, block_size)
    codes = np.empty(blocks.shape, np.uint8)
    scales = np.empty(len(blocks), np.float32)
    points = np.empty(len(blocks), np.uint8)
    # Whole rows at a time, so that one weight a column serves them all.
    step = max(1, _BLOCKS_AT_ONCE // row_blocks) * row_blocks
    for start in range(0, len(blocks), step):
        part = slice(start, min(start + step, len(blocks)))
        weights = None
        if importance is not None:
            by_block = importance.reshape(row_blocks, block_size).T
            weights = np.tile(by_block, (part.stop - start) // row_blocks)
        search = _Search(blocks[part], bits, weights)
        if symmetric:
            search.try_all(search.symmetric_starts())
        elif bits == 8:
            search.try_all([search.full_range()])
        else:
            search.try_all(search.asymmetric_starts())
        scales[part], points[part] = search.scales(), search.zero_points()
        codes[part] = search.codes().T
    shape = (rows, row_blocks)
    return BlockQuantized.from_codes(
        codes.reshape(*shape, block_size),
        scales.reshape(shape),
        bits=bits,
        zero_points=None if symmetric else points.reshape(shape),
    )


def find_4_bit_grids(
    blocks: NDArray[np.float32], importance: NDArray[np.float32], *, symmetric: bool = False
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The scale and zero point of small weighted error of M blocks.

    Args:
        blocks: float32 [block_size, M], a block a column.
        importance: float32 [block_size], the weight of a squared error in each of its values.
        symmetric: whether every zero point is 8.

    Returns:
        Scales and zero points, float32 [M]; the zero points are whole numbers from 0 to 15.
    """
    weights = np.broadcast_to(importance[:, np.newaxis], blocks.shape)
    search = _Search(blocks.T, 4, weights)
    search.try_all(search.symmetric_starts() if symmetric else search.calibrated_starts())
    return search.scales(), search.zero_points().astype(np.float32)


_Start = tuple[NDArray[np.float32], NDArray[np.float32]]  # scale [M], zero point [M]


class _Search:
    """The best (scale, zero point) seen so far of M blocks.

    Values are held as [block_size, M], so that what is done for a block runs along contiguous
    memory, and in units of each block's largest magnitude, so that nothing over- or underflows.
    """

    def __init__(
        self, blocks: NDArray[np.float32], bits: int, weights: NDArray[np.float32] | None
    ) -> None:
        self._top = np.float32((1 << bits) - 1)
        self._x = np.array(blocks.T, order="C")  # [block_size, M], a copy
        self._unit = np.abs(self._x).max(axis=0)
        self._unit[self._unit < _SMALLEST] = 0
        self._x *= _reciprocal(self._unit)
        self._low = np.minimum(self._x.min(axis=0), 0)
        self._high = np.maximum(self._x.max(axis=0), 0)
        self._weights = weights
        self._weighted = self._x if weights is None else self._x * weights
        self._steps = np.empty_like(self._x)
        count = self._x.shape[1]
        # What a start takes off the squared error, of which the rest is the values' own squares.
        self._gain = np.full(count, -1, np.float32)
        self._scale = np.zeros(count, np.float32)
        self._point = np.full(count, np.float32(1 << (bits - 1)))

    def full_range(self) -> _Start:
        scale = (self._high - self._low) / self._top
        return scale, np.rint(-self._low * _reciprocal(scale))

    def asymmetric_starts(self) -> Iterable[_Start]:
        scale, point = self.full_range()
        if self._weights is None:
            for part in _ASYMMETRIC_RANGES:
                yield scale * np.float32(part), point
            return
        yield from self._shifted_starts(_IMPORTANCE_RANGES, _ZERO_POINT_SHIFTS)

    def calibrated_starts(self) -> Iterable[_Start]:
        """Fewer, for blocks whose scales are revisited."""
        yield from self._shifted_starts(_CALIBRATED_RANGES, _CALIBRATED_SHIFTS)

    def _shifted_starts(
        self, ranges: tuple[float, ...], shifts: tuple[int, ...]
    ) -> Iterable[_Start]:
        scale, point = self.full_range()
        for part in ranges:
            for shift in shifts:
                shifted = np.clip(point + np.float32(shift), 0, self._top)
                yield scale * np.float32(part), shifted

    def symmetric_starts(self) -> Iterable[_Start]:
        middle = np.float32((int(self._top) + 1) // 2)
        # The sign that puts the value of largest magnitude on the lowest code.
        sign = np.where(self._high > -self._low, np.float32(-1), np.float32(1))
        weighted = self._weights is not None
        for part in _SYMMETRIC_IMPORTANCE_RANGES if weighted else _SYMMETRIC_RANGES:
            yield sign * (np.float32(part) / middle), np.full_like(sign, middle)

    def try_all(self, starts: Iterable[_Start]) -> None:
        for scale, point in starts:
            steps = self._round(scale, point)
            products = np.einsum("bm,bm->m", self._weighted, steps)
            if self._weights is None:
                squares = np.einsum("bm,bm->m", steps, steps)
            else:
                squares = np.einsum("bm,bm,bm->m", self._weights, steps, steps)
            refit = products * _reciprocal(squares)
            gain = products * refit
            better = gain > self._gain
            np.copyto(self._gain, gain, where=better)
            np.copyto(self._scale, refit, where=better)
            np.copyto(self._point, point, where=better)

    def scales(self) -> NDArray[np.float32]:
        scales: NDArray[np.float32] = self._scale * self._unit
        return scales

    def zero_points(self) -> NDArray[np.uint8]:
        return self._point.astype(np.uint8)

    def codes(self) -> NDArray[np.uint8]:
        """uint8 [block_size, M]; rounded anew, as the refit scale may suit other codes better."""
        steps = self._round(self._scale, self._point)
        steps += self._point
        return steps.astype(np.uint8)

    def _round(self, scale: NDArray[np.float32], point: NDArray[np.float32]) -> NDArray[np.float32]:
        """Codes less the zero point, within the codes' range; overwritten by the next call."""
        steps = self._steps
        np.multiply(self._x, _reciprocal(scale), out=steps)
        np.rint(steps, out=steps)
        np.maximum(steps, -point, out=steps)
        np.minimum(steps, self._top - point, out=steps)
        return steps


def _reciprocal(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """1 / values, and 0 for 0."""
    result: NDArray[np.float32] = np.zeros_like(values)
    np.divide(np.float32(1), values, out=result, where=values != 0)
    return result
