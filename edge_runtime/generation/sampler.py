"""Chooses the next token of one sequence from its logits.

One :class:`Sampler` lives as long as its sequence: it holds the random stream and the counts that
penalties need. Runs once a token on vocabularies up to 256k, so greedy is one argmax, penalties
touch only seen tokens, and filters look at the tokens they can keep, never at a sorted vocabulary.

Knows no engine, no text and no end tokens.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_runtime.engine.request import ChosenLogprob, TokenLogprob
from edge_runtime.errors import InvalidParameterError, RunError
from edge_runtime.generation.distribution import Whole, ids_of_highest, locate
from edge_runtime.generation.logits_processors import (
    Candidates,
    SeenTokens,
    add_logit_bias,
    forbid_others,
    likeliest,
    min_p,
    penalize_presence_and_frequency,
    penalize_repetition,
    top_p,
    typical,
    within_min_p,
    within_top_p,
    within_typical,
)
from edge_runtime.generation.params import SamplingParams

# A lower temperature only overflows: the likeliest token has all the probability long before.
GREEDY_BELOW_TEMPERATURE = 1e-5


@dataclass(frozen=True)
class Sampled:
    """A chosen token; ``logprob`` where the parameters ask for it."""

    token_id: int
    logprob: ChosenLogprob | None


class Sampler:
    """Chooses tokens for one sequence and remembers what it chose.

    Equal logits go to the lowest id. With the same seed and the same logits the tokens are the
    same: each drawn token takes exactly one number from the stream, each greedy token none. The
    stream is the standard library's (Mersenne Twister, the same on every version and system):
    importing numpy's generators costs a start 12 ms and 5 MB, for one number a token.

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
        self._seed = random.SystemRandom().getrandbits(53) if params.seed is None else params.seed
        self._random = None if self._greedy else random.Random(self._seed)
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
        needs_weights = not self._greedy or params.logprobs is not None
        self._scratch = np.empty(self._shape if needs_weights else 0, np.float32)

    @property
    def random_seed(self) -> int:
        """The seed in use: the one asked for, or the one drawn where none was."""
        return self._seed

    def sample(
        self, logits: NDArray[np.float32], allowed: NDArray[np.bool_] | None = None
    ) -> Sampled:
        """Choose a token and count it as generated.

        Args:
            logits: (V,) float32 (another float kind is copied), only read: it may be a view on a
                buffer of the engine.
            allowed: (V,) which tokens may be chosen; None allows all.

        Raises:
            RunError: logits of another shape, NaN or infinity among them, or all of them (or of
                those allowed) -inf.
        """
        if logits.shape != self._shape:
            raise RunError(f"the logits have the shape {logits.shape}, expected {self._shape}")
        if logits.dtype != np.float32:
            logits = logits.astype(np.float32)
        highest_id = int(logits.argmax())  # the first NaN where there is one
        highest = logits[highest_id]
        if not np.isfinite(highest):
            raise _broken_logits(float(highest))
        token_id = highest_id
        if allowed is not None and self._changed is None:
            self._changed = np.empty(self._shape, np.float32)
        if self._random is not None or self._changed is not None:
            # A logit far below the others leaves float32's range on its way to a weight of 0.
            with np.errstate(over="ignore", under="ignore"):
                token_id = self._choose(logits, highest_id, allowed)
        if self._seen is not None:
            self._seen.add(token_id)
        if self._params.logprobs is None:
            return Sampled(token_id, None)
        return Sampled(token_id, self._logprob(logits, highest, token_id, self._params.logprobs))

    def _choose(
        self, logits: NDArray[np.float32], highest_id: int, allowed: NDArray[np.bool_] | None
    ) -> int:
        if self._changed is not None:
            logits = self._apply_changes(logits, self._changed)
            if allowed is not None:
                forbid_others(logits, allowed)
            highest_id = int(logits.argmax())
            if not np.isfinite(logits[highest_id]):
                raise _broken_logits(float(logits[highest_id]))
        if self._random is None:
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
        """What may be drawn; the first filter also narrows down what the others look at."""
        params = self._params
        if params.top_k:
            kept = likeliest(whole, params.top_k)
        elif params.min_p > 0:
            kept = within_min_p(whole, params.min_p, part_of=whole if params.top_p < 1 else None)
        elif params.top_p < 1:
            kept = within_top_p(whole, params.top_p)
        elif params.typical_p < 1:
            kept = within_typical(whole, params.typical_p)
        else:
            return whole
        if params.top_p < 1:
            kept = top_p(kept, params.top_p)
        if params.min_p > 0:
            kept = min_p(kept, params.min_p)
        if params.typical_p < 1:
            kept = typical(kept, params.typical_p)
        return kept

    def _logprob(
        self, logits: NDArray[np.float32], highest: np.float32, token_id: int, top: int
    ) -> ChosenLogprob:
        """Natural-log probabilities of the distribution as the model gave it."""
        with np.errstate(under="ignore"):
            total = Whole(logits, highest, 1.0, self._scratch).total
        offset = float(highest) + float(np.log(total))

        def of(token: int) -> TokenLogprob:
            return TokenLogprob(token, float(logits[token]) - offset)

        if top == 0:
            return ChosenLogprob(of(token_id), ())
        ids = ids_of_highest(logits, top)
        order = np.argsort(-logits[ids], kind="stable")[:top]
        return ChosenLogprob(of(token_id), tuple(of(int(token)) for token in ids[order]))


def _draw(source: Candidates | Whole, uniform: float) -> int:
    """The token at ``uniform`` (in [0, 1)) of the cumulated distribution."""
    index = locate(source.weights, uniform * source.total, side="right")
    return int(source.token_ids[index]) if isinstance(source, Candidates) else index


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
