"""Several answers to one prompt: what tells them apart, and which is best.

Knows parameters and answers; knows no engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from edge_runtime.engine.request import ChosenLogprob, Completion
from edge_runtime.errors import InvalidParameterError
from edge_runtime.generation.params import MAX_SEED, SamplingParams


@dataclass(frozen=True)
class Candidate:
    """One of several answers, and what it is ranked by: the higher the better."""

    completion: Completion
    score: float


def candidate_params(params: SamplingParams, count: int) -> list[SamplingParams]:
    """Parameters of ``count`` answers: the seed and those after it, or chance where none is given.

    So each of them can be had alone, by its own seed.

    Raises:
        InvalidParameterError: the count is not 1 or more.
    """
    check_counts(count, None)
    if params.seed is None:
        return [params] * count
    return [replace(params, seed=(params.seed + i) % (MAX_SEED + 1)) for i in range(count)]


def check_counts(n: int, best_of: int | None) -> None:
    """Refuse numbers of answers that cannot be.

    Raises:
        InvalidParameterError: ``n`` below 1, or ``best_of`` below ``n``.
    """
    if n < 1:
        raise InvalidParameterError(f"n is {n}; it must be 1 or more")
    if best_of is not None and best_of < n:
        raise InvalidParameterError(
            f"best_of is {best_of}, less than the {n} answers that are wanted"
        )


def with_logprobs(params: SamplingParams) -> SamplingParams:
    """The parameters, made to report at least the chosen tokens' logprobs, to rank by them."""
    return replace(params, logprobs=0) if params.logprobs is None else params


def ranked(completions: Iterable[Completion], *, keep_logprobs: bool) -> list[Candidate]:
    """The answers by falling mean logprob, the earlier first among equals.

    Args:
        completions: with the logprobs of all their tokens.
        keep_logprobs: whether the answers keep them.
    """
    candidates = [Candidate(each, mean_logprob(each.logprobs)) for each in completions]
    candidates.sort(key=lambda candidate: -candidate.score)
    if keep_logprobs:
        return candidates
    return [replace(c, completion=replace(c.completion, logprobs=())) for c in candidates]


def mean_logprob(logprobs: Sequence[ChosenLogprob]) -> float:
    """The mean natural-log probability of an answer's tokens, the end token among them.

    It is of the distribution that the model gave. An answer without tokens ranks last.
    """
    if not logprobs:
        return float("-inf")
    return sum(each.chosen.logprob for each in logprobs) / len(logprobs)
