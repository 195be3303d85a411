"""Changes to logits and filters on what may be drawn, as plain functions.

Changes work in place on the caller's own (V,) float32 copy and touch only the token ids they name.
Filters work on :class:`Candidates`: those tokens of a distribution that a bound shows to hold all
that the filter can keep, so that nothing sorts a vocabulary; what a filter decides on them is what
it would decide on all.

The order is fixed, and is that of Hugging Face transformers where it has them: logit bias,
repetition penalty, presence and frequency penalties, what a grammar forbids, temperature, top-k,
top-p, min-p, typical.
Bias comes first because it restates what the model believes; penalties act on that belief before
temperature, so that their strength does not depend on it; each filter then judges the distribution
that the one before it left, renormalized.

Knows no request, no random numbers and no engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_runtime.generation.distribution import (
    Logits,
    Whole,
    ids_at_least,
    ids_of_highest,
    locate,
    rising_order,
)


class SeenTokens:
    """Distinct token ids of a sequence and how often each was generated.

    Kept as growing arrays, so that a penalty is one gather and one scatter over the seen ids.
    """

    def __init__(self, prompt_token_ids: Iterable[int]) -> None:
        ids = np.unique(np.fromiter(prompt_token_ids, dtype=np.int64))
        self._size = ids.size
        self._ids = ids
        self._counts = np.zeros(ids.size, np.float32)
        self._position = {int(token): i for i, token in enumerate(ids)}

    @property
    def ids(self) -> NDArray[np.int64]:
        """(N,) ids of prompt and answer, each once."""
        return self._ids[: self._size]

    @property
    def counts(self) -> NDArray[np.float32]:
        """(N,) how often each of :attr:`ids` was generated; 0 for those of the prompt alone."""
        return self._counts[: self._size]

    def add(self, token_id: int) -> None:
        """Count one generated token."""
        position = self._position.get(token_id)
        if position is None:
            position = self._size
            if position == self._ids.size:
                room = max(64, position)
                self._ids = np.concatenate([self._ids, np.zeros(room, np.int64)])
                self._counts = np.concatenate([self._counts, np.zeros(room, np.float32)])
            self._ids[position] = token_id
            self._position[token_id] = position
            self._size += 1
        self._counts[position] += 1


def add_logit_bias(logits: Logits, ids: NDArray[np.int64], biases: Logits) -> None:
    """Add ``biases`` (N,) to the logits of ``ids`` (N,), in place (OpenAI API, logit_bias)."""
    logits[ids] += biases


def penalize_repetition(logits: Logits, ids: NDArray[np.int64], penalty: float) -> None:
    """Divide positive and multiply negative logits of seen ``ids`` (N,), in place.

    Source: Keskar et al. 2019, CTRL, arXiv:1909.05858, section 4.1, with the sign handled as
    transformers does, so that a penalty above 1 always makes a token less likely.
    """
    values = logits[ids]
    logits[ids] = np.where(values > 0, values / np.float32(penalty), values * np.float32(penalty))


def penalize_presence_and_frequency(
    logits: Logits,
    ids: NDArray[np.int64],
    counts: NDArray[np.float32],
    presence: float,
    frequency: float,
) -> None:
    """Subtract ``presence`` once and ``frequency`` for each time generated, in place.

    Source: OpenAI's API reference: ``logit -= count * frequency + (count > 0) * presence``, over
    generated tokens only.
    """
    logits[ids] -= counts * np.float32(frequency) + (counts > 0) * np.float32(presence)


def forbid_others(logits: Logits, allowed: NDArray[np.bool_]) -> None:
    """Set the logits of all tokens but the ``allowed`` (V,) ones to -inf, in place."""
    np.copyto(logits, -np.inf, where=~allowed)


@dataclass(frozen=True)
class Candidates:
    """The tokens of a distribution that its filters may keep.

    Args:
        token_ids: (M,) rising at first, so that among equals the lowest id comes first; a filter
            may leave them in its own order, which breaks ties the same way.
        weights: (M,) float32, exp((logit - highest) / temperature).
        whole: the distribution they are taken from, where the next filter is to judge them as a
            part of it; None where they are all that is left.
    """

    token_ids: NDArray[np.int64]
    weights: NDArray[np.float32]
    whole: Whole | None

    @property
    def total(self) -> float:
        """The sum of the weights of the distribution that the next filter judges."""
        return float(self.weights.sum()) if self.whole is None else self.whole.total

    @property
    def entropy(self) -> float:
        """The entropy in nats of the distribution that the next filter judges."""
        if self.whole is not None:
            return self.whole.entropy
        present = self.weights[self.weights > 0]
        total = float(present.sum())
        return float(np.log(total) - (present * np.log(present)).sum() / total)

    def only(self, kept: NDArray[np.int64]) -> Candidates:
        """Those at the indices ``kept`` and no others: the rest of the distribution is dropped."""
        return Candidates(self.token_ids[kept], self.weights[kept], None)


def likeliest(whole: Whole, k: int) -> Candidates:
    """Keep the k likeliest tokens (top-k; Fan et al. 2018, arXiv:1805.04833).

    Exactly k, the lowest ids among equals; transformers keeps all that equal the k-th.
    """
    ids = ids_of_highest(whole.logits, k)
    ids = ids[np.argsort(-whole.logits[ids], kind="stable")[:k]]
    return Candidates(ids, whole.weights_of(ids), None)


def within_top_p(whole: Whole, p: float) -> Candidates:
    """Enough tokens for :func:`top_p` to decide as it would on all.

    The tokens below (1 - p) / V of the total, at most V, have less than 1 - p of it together, so
    those from there up reach p.
    """
    return _at_least(whole, (1 - p) * whole.total / whole.logits.size, part_of=whole)


def within_typical(whole: Whole, mass: float) -> Candidates:
    """Enough tokens for :func:`typical` to decide as it would on all.

    As for top-p, the tokens above some probability reach the mass. Where that probability is so
    low that its information is farther above the entropy than that of the likeliest token is
    below, no token under it is nearer to the entropy than all of those.
    """
    floor = (1 - mass) * whole.total / whole.logits.size
    mirrored = whole.total**2 * float(np.exp(-2 * whole.entropy))
    return _at_least(whole, min(floor, mirrored), part_of=whole)


def within_min_p(whole: Whole, p: float, *, part_of: Whole | None) -> Candidates:
    """Enough tokens for :func:`min_p` to decide, and for a top-p that comes before it.

    Both keep the likeliest tokens down to some probability, so the order of the two cuts does not
    matter as long as top-p judges its tokens as ``part_of`` the whole distribution.
    """
    return _at_least(whole, p, part_of=part_of)


def _at_least(whole: Whole, weight: float, *, part_of: Whole | None) -> Candidates:
    """All tokens of at least this weight; rounding may let in a few below it."""
    floor = float(whole.highest) + whole.temperature * (np.log(weight) if weight > 0 else -np.inf)
    slack = 1e-6 * (abs(floor) + abs(float(whole.highest))) if weight > 0 else 0.0
    ids = ids_at_least(whole.logits, np.float32(floor - slack))
    return Candidates(ids, whole.weights_of(ids), part_of)


def top_p(given: Candidates, p: float) -> Candidates:
    """Keep the fewest likeliest tokens whose probability reaches p (nucleus sampling).

    Source: Holtzman et al. 2019, arXiv:1904.09751.
    """
    return _fewest_reaching(given, rising_order(~given.weights.view(np.uint32)), p)


def min_p(given: Candidates, p: float) -> Candidates:
    """Keep tokens at least p times as probable as the likeliest one.

    Source: Nguyen et al. 2024, arXiv:2407.01082.
    """
    return given.only(np.flatnonzero(given.weights >= np.float32(p) * given.weights.max()))


def typical(given: Candidates, mass: float) -> Candidates:
    """Keep the fewest tokens nearest the expected information whose probability reaches mass.

    A token's distance is | -log p - entropy |. Source: Meister et al. 2022, arXiv:2202.00666.
    """
    expected = np.float32(np.log(given.total) - given.entropy)
    with np.errstate(divide="ignore"):  # a weight of 0 is infinitely far
        distance = np.abs(np.log(given.weights) - expected)
    return _fewest_reaching(given, rising_order(distance.view(np.uint32)), mass)


def _fewest_reaching(given: Candidates, order: NDArray[np.int64], mass: float) -> Candidates:
    last = locate(given.weights[order], mass * given.total, side="left")
    return given.only(order[: last + 1])
