"""Changes to logits and filters on what may be drawn, as plain functions.

Changes work in place on the caller's own (V,) float32 copy and touch only the token ids they name.
Filters work on :class:`Candidates`: the likeliest tokens of a distribution in falling order, so
that no filter sorts a vocabulary. Where the candidates are too few to decide, a filter answers
None and the caller comes back with more of them; what it decides is what it would decide on all.

The order is fixed, and is that of Hugging Face transformers where it has them: logit bias,
repetition penalty, presence and frequency penalties, temperature, top-k, top-p, min-p, typical.
Bias comes first because it restates what the model believes; penalties act on that belief before
temperature, so that their strength does not depend on it; each filter then judges the distribution
that the one before it left, renormalized.

Knows no request, no random numbers and no engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]

# Below exp of this a float32 is zero, so clamping to it changes no weight; it keeps 0 * -inf away.
_LOG_OF_ZERO = -104.0
_ROWS = 32


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

    def _log_weights(self, out: Logits) -> Logits:
        np.subtract(self.logits, self.highest, out=out)
        if self.temperature != 1.0:
            np.divide(out, np.float32(self.temperature), out=out)
        return out


@dataclass(frozen=True)
class Candidates:
    """The likeliest tokens of a distribution, in falling order; among equals the lowest id first.

    Args:
        token_ids: (M,).
        log_weights: (M,) float64, (logit - highest) / temperature: falling, the first one 0.
        whole: the distribution they are the head of, every token outside being less likely than
            each of them; None where they are all there is.
    """

    token_ids: NDArray[np.int64]
    log_weights: NDArray[np.float64]
    whole: Whole | None

    @cached_property
    def weights(self) -> NDArray[np.float64]:
        """(M,) probabilities but for a common factor."""
        return np.exp(self.log_weights)

    @property
    def total(self) -> float:
        """The sum of the weights of the distribution, those outside the candidates included."""
        return float(self.weights.sum()) if self.whole is None else self.whole.total

    @property
    def entropy(self) -> float:
        """Entropy in nats of the distribution, those outside the candidates included."""
        if self.whole is not None:
            return self.whole.entropy
        finite = np.maximum(self.log_weights, _LOG_OF_ZERO)
        return float(np.log(self.total) - (self.weights * finite).sum() / self.total)

    def only(self, kept: slice | NDArray[np.bool_]) -> Candidates:
        """These and no others: the rest of the distribution is dropped."""
        return Candidates(self.token_ids[kept], self.log_weights[kept], None)


def candidates(whole: Whole, count: int) -> Candidates:
    """The ``count`` likeliest tokens, and all that are as likely as the last of them."""
    logits = whole.logits
    ids = ids_of_highest(logits, count)
    values = logits[ids]
    # ids rise, so a stable sort leaves equals in the order of their ids.
    order = np.argsort(-values, kind="stable")
    log_weights = (values[order].astype(np.float64) - float(whole.highest)) / whole.temperature
    return Candidates(ids[order], log_weights, None if ids.size == logits.size else whole)


def ids_of_highest(logits: Logits, count: int) -> NDArray[np.int64]:
    """Rising ids of the ``count`` highest logits and of every further one equal to their lowest.

    Exact, and without sorting or partitioning the vocabulary: it is folded into columns, whose
    maxima come from one vectorized pass. The count-th highest maximum is not above the count-th
    highest logit (that many columns hold a logit so high), so everything wanted lies in the few
    columns that reach it. A few more logits may reach it too; the exact cut is made among those.

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
    folded = logits[: _ROWS * columns].reshape(_ROWS, columns)
    maxima = folded.max(axis=0)
    floor = np.partition(maxima, columns - count)[columns - count]
    reaching = np.flatnonzero(maxima >= floor)
    row, column = np.nonzero(folded[:, reaching] >= floor)
    rest = np.flatnonzero(logits[_ROWS * columns :] >= floor)
    ids = np.concatenate([row * columns + reaching[column], rest + _ROWS * columns])
    values = logits[ids]
    lowest = np.partition(values, values.size - count)[values.size - count]
    wanted: NDArray[np.int64] = ids[values >= lowest]
    return wanted


def top_k(given: Candidates, k: int) -> Candidates | None:
    """Keep the k likeliest tokens (Fan et al. 2018, arXiv:1805.04833); None: too few candidates.

    Exactly k, the lowest ids among equals; transformers keeps all that equal the k-th.
    """
    if given.whole is not None and given.token_ids.size < k:
        return None
    return given.only(slice(k))


def top_p(given: Candidates, p: float) -> Candidates | None:
    """Keep the fewest likeliest tokens whose probability reaches p (nucleus sampling).

    Source: Holtzman et al. 2019, arXiv:1904.09751. None: too few candidates.
    """
    cumulated = np.cumsum(given.weights)
    reached = int(np.searchsorted(cumulated, p * given.total))
    if reached >= cumulated.size and given.whole is not None:
        return None
    return given.only(slice(reached + 1))


def min_p(given: Candidates, p: float) -> Candidates | None:
    """Keep tokens at least p times as probable as the likeliest one.

    Source: Nguyen et al. 2024, arXiv:2407.01082. None: too few candidates.
    """
    kept = int(np.searchsorted(-given.log_weights, -np.log(p), side="right"))
    if kept == given.log_weights.size and given.whole is not None:
        return None
    return given.only(slice(max(kept, 1)))


def typical(given: Candidates, mass: float) -> Candidates | None:
    """Keep the fewest tokens nearest the expected information whose probability reaches mass.

    A token's distance is | -log p - entropy |. Source: Meister et al. 2022, arXiv:2202.00666.
    None: too few candidates.
    """
    total = given.total
    information = np.log(total) - given.log_weights  # (M,) rising; inf where the weight is 0
    distance = np.abs(information - given.entropy)
    order = np.argsort(distance, kind="stable")
    if given.whole is not None:
        # Any token outside is farther than this; nearer ones are all among the candidates.
        known_to = information[-1] - given.entropy
        order = order[distance[order] <= known_to]
    reached = int(np.searchsorted(np.cumsum(given.weights[order]), mass * total))
    if reached >= order.size and given.whole is not None:
        return None
    kept = np.zeros(distance.size, np.bool_)
    kept[order[: reached + 1]] = True
    return given.only(kept)
