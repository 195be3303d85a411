"""Chooses the next token of one sequence from its logits.

One :class:`Sampler` lives as long as its sequence: it holds the random stream and the counts that
penalties need. Runs once a token on vocabularies up to 256k, so greedy is one argmax, penalties
touch only seen tokens, and filters look at the few likeliest tokens first and at more only where
those do not decide.

Knows no engine, no text and no end tokens.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_runtime.engine.request import ChosenLogprob, TokenLogprob
from edge_runtime.errors import InvalidParameterError, RunError
from edge_runtime.generation.logits_processors import (
    Candidates,
    SeenTokens,
    Whole,
    add_logit_bias,
    candidates,
    ids_of_highest,
    min_p,
    penalize_presence_and_frequency,
    penalize_repetition,
    top_k,
    top_p,
    typical,
)
from edge_runtime.generation.params import SamplingParams

# A lower temperature only overflows: the likeliest token has all the probability long before.
GREEDY_BELOW_TEMPERATURE = 1e-5
_FIRST_CANDIDATES = 128
_WIDEN_BY = 8


@dataclass(frozen=True)
class Sampled:
    """A chosen token; ``logprob`` where the parameters ask for it."""

    token_id: int
    logprob: ChosenLogprob | None


class Sampler:
    """Chooses tokens for one sequence and remembers what it chose.

    Equal logits go to the lowest id. With the same seed and the same logits the tokens are the
    same: each drawn token takes exactly one number from the stream (numpy's PCG64), each greedy
    token none.

    Args:
        params: how to choose.
        prompt_token_ids: the prompt, which the repetition penalty counts as seen.
        vocabulary_size: V, the length of the logits.

    Raises:
        InvalidParameterError: a token id in the parameters or the prompt is outside the vocabulary.
    """

    def __init__(
        self, params: SamplingParams, *, prompt_token_ids: Sequence[int], vocabulary_size: int
    ) -> None:
        _check_ids("logit_bias", params.logit_bias, vocabulary_size)
        _check_ids("stop_token_ids", params.stop_token_ids, vocabulary_size)
        _check_ids("the prompt", (min(prompt_token_ids, default=0),), vocabulary_size)
        _check_ids("the prompt", (max(prompt_token_ids, default=0),), vocabulary_size)
        self._params = params
        self._shape = (vocabulary_size,)
        self._greedy = params.temperature < GREEDY_BELOW_TEMPERATURE
        self._seed = secrets.randbits(53) if params.seed is None else params.seed
        self._random = None if self._greedy else np.random.Generator(np.random.PCG64(self._seed))
        self._counts_generated = params.presence_penalty != 0 or params.frequency_penalty != 0
        self._seen: SeenTokens | None = None
        if params.repetition_penalty != 1:
            self._seen = SeenTokens(prompt_token_ids)
        elif self._counts_generated:
            self._seen = SeenTokens(())
        self._bias_ids = np.fromiter(params.logit_bias.keys(), np.int64)
        self._biases = np.fromiter(params.logit_bias.values(), np.float32)
        changes = self._seen is not None or self._bias_ids.size > 0
        self._changed = np.empty(self._shape, np.float32) if changes else None
        self._scratch = None if self._greedy else np.empty(self._shape, np.float32)

    @property
    def random_seed(self) -> int:
        """The seed in use: the one asked for, or the one drawn where none was."""
        return self._seed

    def sample(self, logits: NDArray[np.float32]) -> Sampled:
        """Choose a token and count it as generated.

        Args:
            logits: (V,) float32, only read: it may be a view on a buffer of the engine.

        Raises:
            RunError: logits of another shape, NaN or infinity among them, or all of them -inf.
        """
        if logits.shape != self._shape:
            raise RunError(f"the logits have the shape {logits.shape}, expected {self._shape}")
        highest_id = int(logits.argmax())  # the first NaN where there is one
        highest = logits[highest_id]
        if not np.isfinite(highest):
            raise _broken_logits(float(highest))
        with np.errstate(over="ignore", under="ignore"):
            token_id = self._choose(logits, highest_id)
            logprob = (
                None
                if self._params.logprobs is None
                else _logprob(logits, highest, token_id, self._params.logprobs)
            )
        if self._seen is not None:
            self._seen.add(token_id)
        return Sampled(token_id, logprob)

    def _choose(self, logits: NDArray[np.float32], highest_id: int) -> int:
        if self._changed is not None:
            logits = self._apply_changes(logits, self._changed)
            highest_id = int(logits.argmax())
            if not np.isfinite(logits[highest_id]):
                raise _broken_logits(float(logits[highest_id]))
        if self._random is None or self._scratch is None:
            return highest_id
        temperature = self._params.temperature
        whole = Whole(logits, logits[highest_id], temperature, self._scratch)
        return _draw(self._filtered(whole), self._random.random())

    def _apply_changes(
        self, logits: NDArray[np.float32], changed: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        np.copyto(changed, logits)
        params, seen = self._params, self._seen
        if self._bias_ids.size:
            add_logit_bias(changed, self._bias_ids, self._biases)
        if seen is not None and params.repetition_penalty != 1:
            penalize_repetition(changed, seen.ids, params.repetition_penalty)
        if seen is not None and self._counts_generated:
            penalize_presence_and_frequency(
                changed, seen.ids, seen.counts, params.presence_penalty, params.frequency_penalty
            )
        return changed

    def _filtered(self, whole: Whole) -> Candidates | Whole:
        """What may be drawn: the first set of candidates large enough to decide every filter."""
        params = self._params
        if params.top_k == 0 and params.top_p == 1 and params.min_p == 0 and params.typical_p == 1:
            return whole
        for count in _counts(params.top_k, self._shape[0]):
            kept = self._filter(candidates(whole, count))
            if kept is not None:
                return kept
        raise AssertionError("all tokens decide every filter")

    def _filter(self, given: Candidates) -> Candidates | None:
        params = self._params
        kept: Candidates | None = given
        if params.top_k:
            kept = top_k(given, params.top_k)
        if kept is not None and params.top_p < 1:
            kept = top_p(kept, params.top_p)
        if kept is not None and params.min_p > 0:
            kept = min_p(kept, params.min_p)
        if kept is not None and params.typical_p < 1:
            kept = typical(kept, params.typical_p)
        return kept


def _counts(k: int, vocabulary_size: int) -> Iterator[int]:
    """How many candidates to try with, in turn; the last is the whole vocabulary."""
    count = k or _FIRST_CANDIDATES
    while count < vocabulary_size:
        yield count
        count *= _WIDEN_BY
    yield vocabulary_size


def _draw(source: Candidates | Whole, uniform: float) -> int:
    """The token at ``uniform`` (in [0, 1)) of the cumulated distribution."""
    if isinstance(source, Candidates):
        return int(source.token_ids[_index_at(source.weights, uniform)[0]])
    # Two levels, because a running sum over the vocabulary costs more than all the rest.
    weights = source.weights
    width = max(1, int(weights.size**0.5))
    starts = np.arange(0, weights.size, width)
    block, uniform = _index_at(np.add.reduceat(weights, starts), uniform)
    start = block * width
    return start + _index_at(weights[start : start + width], uniform)[0]


def _index_at(
    weights: NDArray[np.float32] | NDArray[np.float64], uniform: float
) -> tuple[int, float]:
    """The index where ``uniform`` of the total falls, and how far into that weight, in [0, 1)."""
    cumulated = np.cumsum(weights, dtype=np.float64)
    target = uniform * cumulated[-1]
    index = int(np.searchsorted(cumulated, target, side="right"))
    before = cumulated[index - 1] if index else 0.0
    within = (target - before) / (cumulated[index] - before)
    return index, min(float(within), _BELOW_ONE)


_BELOW_ONE = 1.0 - 2.0**-53


def _logprob(
    logits: NDArray[np.float32], highest: np.float32, token_id: int, top: int
) -> ChosenLogprob:
    """Natural-log probabilities of the distribution as the model gave it."""
    offset = float(highest) + float(np.log(np.exp(logits - highest).sum(dtype=np.float64)))

    def of(token: int) -> TokenLogprob:
        return TokenLogprob(token, float(logits[token]) - offset)

    if top == 0:
        return ChosenLogprob(of(token_id), ())
    ids = ids_of_highest(logits, top)
    order = np.argsort(-logits[ids], kind="stable")[:top]
    return ChosenLogprob(of(token_id), tuple(of(int(token)) for token in ids[order]))


def _check_ids(name: str, ids: Iterable[int], vocabulary_size: int) -> None:
    for token in ids:
        if not 0 <= token < vocabulary_size:
            raise InvalidParameterError(
                f"{name} names token {token}, and the model has tokens 0 to {vocabulary_size - 1}"
            )


def _broken_logits(highest: float) -> RunError:
    return RunError(
        "every logit is -inf: no token can be chosen"
        if highest == float("-inf")
        else f"the model's logits hold {'NaN' if np.isnan(highest) else 'infinity'}",
        hint="the weights or the execution provider are numerically broken: "
        "try another provider, or export again",
    )
