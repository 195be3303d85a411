"""4-bit rounding that makes up for each error in the columns that follow.

What counts is a layer's output on its real inputs: with H the second moments of the input, the
error ``e = w - q`` of a row costs ``e H e^T``. Rounding column after column, the errors so far are
made up for as far as the columns are correlated (GPTQ: Frantar et al. 2022; in the form without an
inverse, LDLQ: Chee et al. 2023). What the layer's input itself lost to earlier layers is aimed at
too (as in GPTAQ: Li et al. 2025). Then coordinate descent revisits every scale and code with all
others fixed (as in QuantEase: Behdin et al. 2023).

Columns keep their order: a scale serves columns that lie side by side. Arrays are transposed, [K, N]
for N rows, so that what is done to a column of all rows runs along memory. Time grows with N K^2,
and memory with K^2: about :data:`COMPENSATION_BYTES` times it, 3.4 GB at the widest. Knows no files and no layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_export.quantize.blocks import BlockQuantized
from edge_export.quantize.calibration import Moments
from edge_export.quantize.round_to_nearest import find_4_bit_grids

F32 = NDArray[np.float32]

COMPENSATION_BYTES = 40
"""Memory that rounding takes, times the square of the input's width."""
LARGEST_WIDTH = 9216
"""Inputs wider than this are not compensated for."""

# Of the mean square of a column, added to each: keeps columns that the text never used in place.
_DAMPING = 0.03
# A few thousand tokens say little of so many correlations: they are shrunk towards none by the
# share K / (K + tokens / 4), which was the best at K = 576 and at K = 1536 alike.
_TOKENS_PER_COLUMN = 4
_DESCENTS = 1  # a second one takes a further 1 % off the error
_COLUMNS_AT_ONCE = 16  # between products with the rest of their block


@dataclass(frozen=True, eq=False)
class Compensation:
    """What rounding a layer's rows needs of its input; serves every matrix that reads it.

    Attributes:
        hessian: H, float32 [K, K], shrunk and damped.
        root: the upper triangular R of ``H = R R^T``, float32 [K, K].
        drift: float32 [K, K] or None, in the units of H.
    """

    hessian: F32
    root: F32
    drift: F32 | None

    @classmethod
    def of(cls, moments: Moments) -> Compensation | None:
        """From moments; None where they are too wide or too damaged to tell anything."""
        width = len(moments.second)
        mean = moments.importance.mean(dtype=np.float64)
        if width > LARGEST_WIDTH or not np.isfinite(mean) or mean <= 0:
            return None
        hessian = moments.second / np.float32(mean)
        diagonal = np.diagonal(hessian) + np.float32(_DAMPING)
        kept = np.float32(moments.tokens / (moments.tokens + _TOKENS_PER_COLUMN * width))
        hessian *= kept
        np.fill_diagonal(hessian, diagonal)
        # Shrunk alike, the two give a ridge regression; more drift would overshoot.
        drift = None if moments.drift is None else moments.drift * (kept / np.float32(mean))
        if not np.isfinite(hessian).all() or (drift is not None and not np.isfinite(drift).all()):
            return None
        try:
            # The Cholesky factor of H read backwards is upper triangular.
            root = np.linalg.cholesky(hessian[::-1, ::-1])[::-1, ::-1]
        except np.linalg.LinAlgError:
            return None
        return cls(hessian, np.ascontiguousarray(root), drift)


def compensated_4_bits(
    values: F32, compensation: Compensation, *, block_size: int, symmetric: bool = False
) -> BlockQuantized:
    """Find 4-bit blocks of small error in the layer's output.

    Args:
        values: float32 [N, K], finite; K a multiple of ``block_size``.
        compensation: of the layer's input.
        block_size: a power of two from 16 to 256.
        symmetric: whether every zero point is 8, and none is stored.
    """
    unit = np.abs(values).max(axis=1)  # by row, so that no product over- or underflows
    unit[unit < 1e-30] = 1
    rounding = _Rounding(
        np.ascontiguousarray(values.T) / unit, compensation, block_size, symmetric=symmetric
    )
    rounding.round_all()
    for _ in range(_DESCENTS):
        rounding.descend()
    return rounding.blocks(unit)


class _Rounding:
    """The state of rounding: codes less their zero points, scales, and the error they leave."""

    def __init__(self, w: F32, how: Compensation, block_size: int, *, symmetric: bool) -> None:
        columns, rows = w.shape
        if columns % block_size:
            raise ValueError(f"rows of {columns} are no whole blocks of {block_size}")
        self._w = w  # [K, N]
        self._how = how
        self._symmetric = symmetric
        self._parts = [slice(i, i + block_size) for i in range(0, columns, block_size)]
        self._error = np.zeros_like(w)  # w - steps * scale
        self._steps = np.zeros_like(w)
        self._scales = np.zeros((len(self._parts), rows), np.float32)
        self._points = np.zeros((len(self._parts), rows), np.float32)
        # The slope of the cost that the input's drift adds, at no error: [K, N].
        self._slope = None if how.drift is None else how.drift.T @ w

    def round_all(self) -> None:
        """Round every column once, from the first on."""
        root = self._how.root
        pivots = np.diagonal(root).copy()
        # What moves each aim so that the drift is made up for, solved with the other half of H
        # by the feedback below.
        shift = None if self._slope is None else _solve_upper(root, self._slope, self._parts)
        for i, part in enumerate(self._parts):
            feedback = root[: part.stop, part] / pivots[part]
            aim = self._w[part].copy()
            if shift is not None:
                aim += shift[part] / pivots[part, np.newaxis]
            if i:
                aim += feedback[: part.start].T @ self._error[: part.start]
            # An error in a column costs what the columns after it cannot make up for.
            self._scales[i], self._points[i] = find_4_bit_grids(
                aim, pivots[part] ** 2, symmetric=self._symmetric
            )
            self._error[part] = self._round_part(i, aim, self._w[part], feedback[part.start :])

    def descend(self) -> None:
        """Give each block's scale, then each of its codes, its best value beside all others."""
        hessian = self._how.hessian
        for i, part in enumerate(self._parts):
            within = hessian[part, part]
            slope = hessian[part] @ self._error
            if self._slope is not None:
                slope += self._slope[part]
            steps = self._steps[part]
            bent = within @ steps
            change = np.einsum("gn,gn->n", steps, slope)
            change *= _reciprocal(np.einsum("gn,gn->n", steps, bent))
            self._scales[i] += change
            self._error[part] -= change * steps
            slope -= change * bent
            before = steps * self._scales[i]
            diagonal = np.diagonal(within)
            aim = slope / diagonal[:, np.newaxis] + before
            self._error[part] += self._round_part(i, aim, before, within / diagonal)

    def blocks(self, unit: F32) -> BlockQuantized:
        """The result; ``unit`` is float32 [N], what each row was divided by."""
        rows = self._w.shape[1]
        steps = self._steps.reshape(len(self._parts), -1, rows)
        codes = (steps + self._points[:, np.newaxis]).astype(np.uint8)
        points = None if self._symmetric else self._points.T.astype(np.uint8)
        return BlockQuantized.from_codes(
            np.ascontiguousarray(codes.transpose(2, 0, 1)),
            np.ascontiguousarray((self._scales * unit).T),
            bits=4,
            zero_points=points,
        )

    def _round_part(self, i: int, aim: F32, reference: F32, feedback: F32) -> F32:
        """Round a block's columns in turn.

        Args:
            i: the block.
            aim: [block_size, N], what each column would be without rounding; overwritten.
            reference: [block_size, N], what the difference is taken from.
            feedback: [block_size, block_size]; column j's aim moves by row i < j of it times the
                difference of i.

        Returns:
            The difference of ``reference`` and what the columns became.
        """
        steps, scale = self._steps[self._parts[i]], self._scales[i]
        inverse = _reciprocal(scale)
        low, high = -self._points[i], 15 - self._points[i]
        difference = np.empty_like(aim)
        moves = np.empty((_COLUMNS_AT_ONCE, aim.shape[1]), np.float32)
        for start in range(0, len(aim), _COLUMNS_AT_ONCE):
            stop = start + _COLUMNS_AT_ONCE
            if start:
                aim[start:stop] += feedback[:start, start:stop].T @ difference[:start]
            for j in range(start, stop):
                step = steps[j]
                np.multiply(aim[j], inverse, out=step)
                np.rint(step, out=step)
                np.maximum(step, low, out=step)
                np.minimum(step, high, out=step)
                np.subtract(reference[j], step * scale, out=difference[j])
                rest = moves[: stop - j - 1]
                np.multiply(feedback[j, j + 1 : stop, np.newaxis], difference[j], out=rest)
                aim[j + 1 : stop] += rest
        return difference


def _solve_upper(root: F32, right: F32, parts: list[slice]) -> F32:
    """The y of ``root @ y = right`` for an upper triangular root, [K, N], part by part."""
    y: F32 = right.copy()
    for part in reversed(parts):
        y[part] -= root[part, part.stop :] @ y[part.stop :]
        y[part] = np.linalg.inv(root[part, part]) @ y[part]
    return y


def _reciprocal(values: F32) -> F32:
    """1 / values, and 0 for what is as good as 0."""
    result = np.zeros_like(values, dtype=np.float32)
    np.divide(np.float32(1), values, out=result, where=np.abs(values) > 1e-30)
    return result
