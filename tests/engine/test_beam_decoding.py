"""Beam search over the slots of an engine: the search's answers, from one reading of the prompt."""

from __future__ import annotations

import numpy as np
import pytest
from support.scripted_engine import END, GREEDY, TOKENIZER, RowsOf, answering, make_engine
from support.table_runner import TableRunner

from edge_runtime.engine.engine import Engine, EngineOptions
from edge_runtime.engine.request import FinishReason
from edge_runtime.errors import InvalidParameterError, RunError, UsageError
from edge_runtime.generation.beam import BeamParams, BeamSearch, Hypothesis

V = TOKENIZER.vocabulary_size
PROMPT = "abcdefgh" * 3


class HashedRunner(TableRunner):
    """Logits by the last three tokens, so that a row with another beam's past gives others."""

    def score(self, seen, logits) -> None:  # type: ignore[no-untyped-def]
        a, b, c = seen[-3:]
        tables = self.table[c], self.table[(b + 5) % V], self.table[(a + 9) % V]
        logits[:] = tables[0] + 0.7 * tables[1] + 0.4 * tables[2]


def beam_engine(slots: int = 4, *, seed: int = 0, context: int = 60, **options: int) -> Engine:
    runner = HashedRunner(vocabulary_size=V, alphabet=[*range(97, 107), END], seed=seed, spread=1.0)
    engine, _ = make_engine(
        lambda seen: 0, runner=runner, cache=RowsOf(runner), context=context,
        options=EngineOptions(slots=slots, **options),
    )  # fmt: skip
    return engine


def reference(params: BeamParams, *, seed: int, most: int) -> list[Hypothesis]:
    """The search, with the logits of each beam computed from all of its tokens."""
    runner = HashedRunner(vocabulary_size=V, alphabet=[*range(97, 107), END], seed=seed, spread=1.0)
    search = BeamSearch(params, end_tokens=(END,), max_tokens=most)
    while search.beams:
        logits = np.zeros((len(search.beams), V), np.float32)
        for row, beam in zip(logits, search.beams, strict=True):
            runner.score([*TOKENIZER.encode(PROMPT), *beam.tokens], row)
        search.advance(logits)
    return search.hypotheses()


@pytest.mark.parametrize("width", [1, 2, 4, 7])
@pytest.mark.parametrize("seed", range(5))
def test_the_beams_in_the_slots_are_those_of_the_search(seed: int, width: int) -> None:
    params = BeamParams(width=width, max_tokens=12)
    candidates = beam_engine(7, seed=seed).beam_search(PROMPT, params)
    expected = reference(params, seed=seed, most=12)
    assert [c.completion.token_ids for c in candidates] == [h.tokens for h in expected]
    assert [c.score for c in candidates] == pytest.approx([h.score for h in expected])


def test_the_prompt_is_read_once_and_the_beams_take_their_steps_together() -> None:
    engine = beam_engine(4)
    engine.beam_search(PROMPT, BeamParams(width=4, max_tokens=10))
    steps = engine._executor._runner.steps  # type: ignore[attr-defined]
    assert sum(s.token_ids.size for s in steps if s.token_ids.shape[1] > 1) == len(PROMPT)
    assert max(len(s.token_ids) for s in steps) == 4


def test_a_prompt_that_is_warm_is_not_read_again_and_stays_warm() -> None:
    engine = beam_engine(3)
    engine.generate(PROMPT, GREEDY)
    first, second = (
        engine.beam_search(PROMPT, BeamParams(width=3, max_tokens=5))[0].completion.usage
        for _ in range(2)
    )
    assert first.cached_tokens == second.cached_tokens == len(PROMPT) - 1
    assert engine.memory().cache_tokens == len(PROMPT)
    assert engine.generate(PROMPT, GREEDY).usage.cached_tokens == len(PROMPT) - 1


def test_requests_after_a_search_get_their_own_answers() -> None:
    expected = beam_engine(3).generate("zzzabc", GREEDY).token_ids
    engine = beam_engine(3)
    engine.beam_search(PROMPT, BeamParams(width=3, max_tokens=8))
    assert engine.generate("zzzabc", GREEDY).token_ids == expected


def test_texts_end_before_the_end_token_and_answers_say_why_they_ended() -> None:
    candidates = beam_engine(4, seed=3).beam_search(PROMPT, BeamParams(width=4, max_tokens=6))
    reasons = {c.completion.finish_reason for c in candidates}
    assert reasons == {FinishReason.STOP, FinishReason.LENGTH}
    for candidate in candidates:
        completion = candidate.completion
        ended = completion.finish_reason is FinishReason.STOP
        assert (completion.token_ids[-1] == END) == ended
        assert completion.text == TOKENIZER.decode(completion.token_ids)
        assert completion.usage.completion_tokens == len(completion.token_ids)


def test_as_many_as_are_wanted_come_back() -> None:
    engine = beam_engine(4)
    params = BeamParams(width=4, max_tokens=6)
    all_of_them = engine.beam_search(PROMPT, params)
    assert len(all_of_them) == 4
    two = engine.beam_search(PROMPT, params, n=2)
    assert [c.completion.token_ids for c in two] == [
        c.completion.token_ids for c in all_of_them[:2]
    ]


@pytest.mark.parametrize("context", [len(PROMPT), len(PROMPT) + 1, len(PROMPT) + 5])
def test_no_beam_goes_past_the_context(context: int) -> None:
    candidates = beam_engine(3, context=context).beam_search(PROMPT, BeamParams(width=3))
    assert max(len(c.completion.token_ids) for c in candidates) <= max(1, context - len(PROMPT))


def test_beams_stay_within_the_tokens_that_the_cache_may_hold() -> None:
    engine = beam_engine(3, context=60, cache_tokens=90)
    candidates = engine.beam_search(PROMPT, BeamParams(width=3))
    assert max(len(c.completion.token_ids) for c in candidates) <= 90 // 3 - len(PROMPT) + 1
    with pytest.raises(InvalidParameterError, match="90 tokens"):
        engine.beam_search(PROMPT * 2, BeamParams(width=3))


@pytest.mark.parametrize(
    ("width", "n", "says"), [(5, None, "5 beams are more than the 4 slots"), (3, 4, "n is 4")]
)
def test_more_than_there_are_is_refused(width: int, n: int | None, says: str) -> None:
    engine = beam_engine(4)
    with pytest.raises(InvalidParameterError, match=says):
        engine.beam_search(PROMPT, BeamParams(width=width), n=n)
    assert not engine.has_work


def test_nothing_is_searched_beside_a_request() -> None:
    engine = beam_engine(4)
    stream = engine.stream(PROMPT, GREEDY)
    next(stream)
    with pytest.raises(UsageError, match="in progress"):
        engine.beam_search(PROMPT)
    stream.close()
    assert engine.beam_search(PROMPT, BeamParams(max_tokens=2))


@pytest.mark.parametrize("failing", [1, 3, 5])
def test_a_failed_step_fails_the_search_and_the_engine_goes_on(failing: int) -> None:
    engine = beam_engine(4)
    engine._executor._runner._fail_at = frozenset({failing})  # type: ignore[attr-defined]
    with pytest.raises(RunError, match="scripted"):
        engine.beam_search(PROMPT, BeamParams(max_tokens=8))
    assert not engine.has_work
    assert engine.beam_search(PROMPT, BeamParams(max_tokens=8))


def test_a_closed_engine_says_so() -> None:
    engine, _ = make_engine(answering("ab", "cd"))
    engine.close()
    with pytest.raises(RunError, match="closed"):
        engine.beam_search(PROMPT, BeamParams(width=1))


def test_beams_need_a_cache_that_can_be_copied() -> None:
    engine, _ = make_engine(answering(PROMPT, "ab"), options=EngineOptions(slots=2))
    with pytest.raises(RunError, match="cannot be copied"):
        engine.beam_search(PROMPT, BeamParams(width=2))
    assert engine.generate(PROMPT, GREEDY).text == "ab"
