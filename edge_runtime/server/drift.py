"""Have a model's answers become other than they were: rolling means of a few signs of them.

One answer in eight is looked at, with the 20 likeliest tokens at each place, which the client does
not see. Its signs are the mean entropy of those distributions (the rest of the mass counted as one
token, so this is a lower bound) and the mean log probability of the chosen tokens, both before
sampling filters; the share of its 4-grams of tokens that repeat an earlier one; and whether it is
empty, or begins as refusals in English do.

The baseline is the first 64 such answers of a model since the server started. The rule: with 64
further ones, answers are ``degraded`` while the recent mean of entropy or log probability is more
than 5 standard errors, and 0.25 nats, away from the baseline's; or the mean repetition or the share
of empty answers or refusals is more than 0.25 above it. Other prompts shift these signs, too: it is
a reason to look, not a verdict.

Knows deltas; knows no engine and no HTTP.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

from edge_runtime.engine.request import ChosenLogprob, Delta
from edge_runtime.generation.params import MAX_LOGPROBS, SamplingParams

BASELINE_ANSWERS = 64
RECENT_ANSWERS = 64
LOOK_AT_EVERY = 8
_STANDARD_ERRORS = 5.0
_LEAST_NATS = 0.25
_LEAST_SHARE = 0.25
_GRAM = 4
_REFUSALS = (
    "i'm sorry", "i am sorry", "sorry, but", "i cannot", "i can't", "i can\u2019t", "as an ai",
    "i'm unable", "i am unable", "i'm not able",
)  # fmt: skip


@dataclass(frozen=True)
class Signs:
    """Of one answer, or the means of several; nats, and shares from 0 to 1."""

    entropy: float
    logprob: float
    repetition: float
    empty: float
    refusal: float


class LookedAt:
    """Gathers the signs of one answer while it passes."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._entropies: list[float] = []
        self._logprobs: list[float] = []

    @staticmethod
    def params(params: SamplingParams) -> SamplingParams:
        """The parameters with which an answer is looked at."""
        return replace(params, logprobs=MAX_LOGPROBS)

    def strip(self, delta: Delta) -> Delta:
        """Look at a delta; gives it as the client would have had it."""
        self._text.append(delta.text)
        self._tokens.extend(delta.token_ids)
        for entry in delta.logprobs:
            self._entropies.append(entropy_of(entry))
            self._logprobs.append(entry.chosen.logprob)
        return replace(delta, logprobs=())

    def signs(self) -> Signs | None:
        """The signs of the whole answer; None where it has no token."""
        if not self._logprobs:
            return None
        text = "".join(self._text).strip()
        return Signs(
            entropy=_mean(self._entropies),
            logprob=_mean(self._logprobs),
            repetition=repetition(self._tokens),
            empty=float(not text),
            refusal=float(text.lower().startswith(_REFUSALS)),
        )


class DriftWatch:
    """Compares a model's recent answers with its first."""

    def __init__(self) -> None:
        self._answers = 0
        self._baseline: list[Signs] = []
        self._recent: deque[Signs] = deque(maxlen=RECENT_ANSWERS)

    def looks(self) -> bool:
        """Whether the next answer is to be looked at."""
        self._answers += 1
        return self._answers % LOOK_AT_EVERY == 1

    def add(self, signs: Signs) -> None:
        """Take the signs of an answer."""
        if len(self._baseline) < BASELINE_ANSWERS:
            self._baseline.append(signs)
        else:
            self._recent.append(signs)

    @property
    def recent(self) -> Signs | None:
        """The means of the recent answers, or of the baseline's while it is gathered."""
        signs = self._recent or self._baseline
        return _means(signs) if signs else None

    @property
    def baseline(self) -> Signs | None:
        """The means of the baseline, once it is whole."""
        return _means(self._baseline) if len(self._baseline) == BASELINE_ANSWERS else None

    @property
    def degraded(self) -> bool:
        """Whether the rule holds; False until there are answers enough."""
        if len(self._recent) < RECENT_ANSWERS:
            return False
        before, now = _means(self._baseline), _means(self._recent)
        for name in ("entropy", "logprob"):
            values = [getattr(signs, name) for signs in self._baseline]
            spread = math.sqrt(_mean((v - getattr(before, name)) ** 2 for v in values))
            error = spread * math.sqrt(1 / BASELINE_ANSWERS + 1 / RECENT_ANSWERS)
            away = abs(getattr(now, name) - getattr(before, name))
            if away > max(_STANDARD_ERRORS * error, _LEAST_NATS):
                return True
        return any(
            getattr(now, name) - getattr(before, name) > _LEAST_SHARE
            for name in ("repetition", "empty", "refusal")
        )


class Drift:
    """The watches of all models."""

    def __init__(self) -> None:
        self.watches: dict[str, DriftWatch] = {}

    def of(self, model: str) -> DriftWatch:
        """A model's watch."""
        return self.watches.setdefault(model, DriftWatch())

    @property
    def degraded(self) -> bool:
        """Whether any model's answers are."""
        return any(watch.degraded for watch in self.watches.values())


def entropy_of(entry: ChosenLogprob) -> float:
    """Entropy in nats of the likeliest tokens and, as one, of all others."""
    held = [t.logprob for t in entry.top if t.logprob > -1e4]
    rest = max(0.0, 1.0 - math.fsum(math.exp(p) for p in held))
    last = -rest * math.log(rest) if rest > 0 else 0.0
    return math.fsum(-p * math.exp(p) for p in held) + last


def repetition(tokens: Sequence[int]) -> float:
    """The share of 4-grams that were there before; 0 where there are none."""
    grams = [tuple(tokens[i : i + _GRAM]) for i in range(len(tokens) - _GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def _means(signs: Iterable[Signs]) -> Signs:
    rows = list(signs)
    return Signs(**{f.name: _mean(getattr(row, f.name) for row in rows) for f in fields(Signs)})


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return math.fsum(found) / len(found)
