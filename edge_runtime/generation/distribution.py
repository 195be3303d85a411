"""A distribution over a vocabulary, and ways to find tokens in it without sorting it.

Knows no filter and no request.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]

# Below exp of this a float32 is zero, so clamping to it changes no weight; it keeps 0 * -inf away.
_LOG_OF_ZERO = -104.0
_ROWS = 32
_ONE_LEVEL = 2048


@dataclass(frozen=True)
class Whole:
    """The whole distribution after temperature; sums are taken on first use.

    Args:
        logits: (V,) float32, not written to.
        highest: the largest of them.
        temperature: above 0.
        scratch: (V,) float32 to compute in; nobody else may use it while this lives.
    """

    logits: Logits
    highest: np.float32
    temperature: float
    scratch: Logits

    @cached_property
    def weights(self) -> Logits:
        """(V,) exp((logit - highest) / temperature), in ``scratch``."""
        return np.exp(self._log_weights(self.scratch), out=self.scratch)

    @cached_property
    def total(self) -> float:
        """The sum of the weights."""
        return float(self.weights.sum())

    @cached_property
    def entropy(self) -> float:
        """Shannon entropy in nats."""
        terms = self._log_weights(np.empty_like(self.scratch))
        np.maximum(terms, np.float32(_LOG_OF_ZERO), out=terms)
        np.multiply(terms, self.weights, out=terms)
        return float(np.log(self.total)) - float(terms.sum()) / self.total

    def weights_of(self, ids: NDArray[np.int64]) -> Logits:
        """(M,) the weights of ``ids`` (M,)."""
        if "weights" in self.__dict__:
            return self.weights[ids]
        weights: Logits = np.exp((self.logits[ids] - self.highest) / np.float32(self.temperature))
        return weights

    def _log_weights(self, out: Logits) -> Logits:
        np.subtract(self.logits, self.highest, out=out)
        if self.temperature != 1.0:
            np.divide(out, np.float32(self.temperature), out=out)
        return out


def ids_of_highest(logits: Logits, count: int) -> NDArray[np.int64]:
    """Rising ids of the ``count`` highest logits and of every further one equal to their lowest.

    Exact, and without sorting or partitioning the vocabulary: it is folded into columns, whose
    maxima come from one vectorized pass. The count-th highest maximum is not above the count-th
    highest logit (that many columns hold a logit so high), so what is wanted is among the logits
    that reach it, and those are few.

    Args:
        logits: (V,) without NaN.
        count: at least 1; V or more gives all ids.
    """
    size = logits.size
    if count >= size:
        return np.arange(size)
    columns = size // _ROWS
    if count * 4 > columns:
        return np.flatnonzero(logits >= np.partition(logits, size - count)[size - count])
    maxima = logits[: _ROWS * columns].reshape(_ROWS, columns).max(axis=0)
    ids = ids_at_least(logits, np.partition(maxima, columns - count)[columns - count])
    values = logits[ids]
    wanted: NDArray[np.int64] = ids[
        values >= np.partition(values, values.size - count)[values.size - count]
    ]
    return wanted


def ids_at_least(logits: Logits, floor: np.float32) -> NDArray[np.int64]:
    """Rising ids of the logits that are ``floor`` or more.

    Looks only into the columns (of the vocabulary folded as in :func:`ids_of_highest`) that reach
    it where those are few: listing the set bits of a whole vocabulary costs several passes.
    """
    columns = logits.size // _ROWS
    folded = logits[: _ROWS * columns].reshape(_ROWS, columns)
    reaching = np.flatnonzero(folded.max(axis=0) >= floor) if columns else np.arange(0)
    if columns == 0 or reaching.size * 8 > columns:
        return np.flatnonzero(logits >= floor)
    row, column = np.nonzero(folded[:, reaching] >= floor)
    rest = np.flatnonzero(logits[_ROWS * columns :] >= floor)
    return np.concatenate([row * columns + reaching[column], rest + _ROWS * columns])


def rising_order(keys: NDArray[np.uint32]) -> NDArray[np.int64]:
    """(M,) indices by rising key, the first among equals first.

    The bits of floats that are not negative rise as they do. Key and index sorted as one integer
    take numpy's vectorized sort, which its stable argsort does not: ten times faster.
    """
    packed = keys.astype(np.uint64) << np.uint64(32)
    packed |= np.arange(keys.size, dtype=np.uint64)
    packed.sort()
    packed &= np.uint64(0xFFFFFFFF)
    order: NDArray[np.int64] = packed.view(np.int64)
    return order


def locate(
    weights: NDArray[np.floating[Any]], target: float, *, side: Literal["left", "right"]
) -> int:
    """The first index where the running sum of ``weights`` (M,) reaches or passes ``target``.

    Reaches where ``side`` is left, passes where it is right; where rounding keeps the whole sum
    below, the last index with any weight. In blocks where there are many, because numpy's running
    sum costs several times its sum.
    """
    size = weights.size
    if size > _ONE_LEVEL:
        width = int(size**0.5)
        sums = np.add.reduceat(weights, np.arange(0, size, width))
        block = locate(sums, target, side=side)
        before = float(sums[:block].sum(dtype=np.float64))
        start = block * width
        # The two sums round differently; below 0 a token without any weight would be found.
        inside = max(0.0, target - before)
        return start + locate(weights[start : start + width], inside, side=side)
    index = int(np.searchsorted(np.cumsum(weights, dtype=np.float64), target, side=side))
    return index if index < size else int(np.flatnonzero(weights)[-1])
