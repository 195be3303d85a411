from __future__ import annotations

import pytest

from edge_runtime.engine.request import (
    ChosenLogprob,
    Completion,
    FinishReason,
    TokenLogprob,
    Usage,
)
from edge_runtime.errors import InvalidParameterError
from edge_runtime.generation.candidates import (
    candidate_params,
    check_counts,
    mean_logprob,
    ranked,
    with_logprobs,
)
from edge_runtime.generation.params import MAX_SEED, SamplingParams


def answer(*logprobs: float) -> Completion:
    entries = tuple(ChosenLogprob(TokenLogprob(i, p), ()) for i, p in enumerate(logprobs))
    usage = Usage(1, 0, len(logprobs), 0.0, 0.0, 0.0)
    return Completion("", tuple(range(len(logprobs))), entries, FinishReason.STOP, usage)


def test_answers_are_ranked_by_the_mean_and_not_by_their_length() -> None:
    answers = [answer(-1.0), answer(-0.5, -0.5, -0.5), answer(-2.0, -0.4), answer()]
    found = ranked(answers, keep_logprobs=True)
    assert [c.score for c in found] == [-0.5, -1.0, -1.2, float("-inf")]
    assert found[0].completion == answers[1]


def test_the_earlier_of_equals_comes_first() -> None:
    first, second = answer(-1.0), answer(-1.0, -1.0)
    assert [c.completion for c in ranked([first, second], keep_logprobs=True)] == [first, second]


def test_logprobs_that_nobody_asked_for_are_left_out() -> None:
    assert with_logprobs(SamplingParams()).logprobs == 0
    assert with_logprobs(SamplingParams(logprobs=3)).logprobs == 3
    (candidate,) = ranked([answer(-1.0)], keep_logprobs=False)
    assert (candidate.score, candidate.completion.logprobs) == (-1.0, ())


def test_each_answer_has_the_seed_after_the_one_before() -> None:
    seeds = [p.seed for p in candidate_params(SamplingParams(seed=MAX_SEED, top_k=4), 3)]
    assert seeds == [MAX_SEED, 0, 1]
    assert {p.top_k for p in candidate_params(SamplingParams(seed=1, top_k=4), 3)} == {4}


def test_without_a_seed_chance_tells_them_apart() -> None:
    assert [p.seed for p in candidate_params(SamplingParams(), 2)] == [None, None]


@pytest.mark.parametrize(("n", "best_of"), [(0, None), (-1, None), (3, 2)])
def test_numbers_that_cannot_be_are_refused(n: int, best_of: int | None) -> None:
    with pytest.raises(InvalidParameterError, match=str(n if best_of is None else best_of)):
        check_counts(n, best_of)


def test_the_mean_is_over_all_tokens() -> None:
    assert mean_logprob(answer(-1.0, -3.0).logprobs) == -2.0
