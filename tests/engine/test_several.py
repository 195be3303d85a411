"""Several answers to one prompt, over doubles: read once, ranked, and each as if it were alone."""

from __future__ import annotations

import dataclasses

import pytest
from support.scripted_engine import END, TOKENIZER, RowsOf, answering, make_engine
from support.table_runner import TableRunner

from edge_runtime.engine.driver import EngineDriver
from edge_runtime.engine.engine import Engine, EngineOptions
from edge_runtime.engine.request import Completion
from edge_runtime.errors import InvalidParameterError, QueueFullError, RunError
from edge_runtime.generation.params import SamplingParams
from edge_runtime.testing import ScriptedRunner

PROMPT = "abcdefgh" * 4
SAMPLED = SamplingParams(temperature=0.8, seed=5, max_tokens=20)


def table_engine(slots: int, **options: int) -> tuple[Engine, TableRunner]:
    runner = TableRunner(
        vocabulary_size=TOKENIZER.vocabulary_size, alphabet=[*range(97, 105), END], seed=3
    )
    engine, _ = make_engine(
        lambda seen: 0, runner=runner, cache=RowsOf(runner),
        options=EngineOptions(slots=slots, **options),
    )  # fmt: skip
    return engine, runner


def evaluated(runner: ScriptedRunner) -> int:
    """Tokens that went through the model in prompts: steps of one are decoding or a last token."""
    return sum(int(s.lengths.sum()) for s in runner.steps if s.token_ids.shape[1] > 1)


@pytest.mark.parametrize("slots", [1, 2, 4, 8])
def test_the_prompt_is_read_once_however_many_slots_there_are(slots: int) -> None:
    engine, runner = table_engine(slots)
    candidates = engine.generate_several(PROMPT, SAMPLED, n=4)
    assert len(candidates) == 4
    assert evaluated(runner) == len(PROMPT)
    cached = sorted(c.completion.usage.cached_tokens for c in candidates)
    assert cached == [0] + [len(PROMPT) - 1] * 3


def test_a_long_prompt_is_read_once_in_its_chunks() -> None:
    engine, runner = table_engine(4, chunk_size=5)
    engine.generate_several(PROMPT, SAMPLED, n=3)
    assert evaluated(runner) == len(PROMPT) // 5 * 5 + len(PROMPT) % 5


@pytest.mark.parametrize("slots", [1, 3])
def test_each_answer_is_that_of_its_seed_alone(slots: int) -> None:
    engine, _ = table_engine(slots)
    candidates = engine.generate_several(PROMPT, SAMPLED, n=4)
    alone = [
        engine.generate(PROMPT, dataclasses.replace(SAMPLED, seed=5 + i)).text for i in range(4)
    ]
    assert sorted(c.completion.text for c in candidates) == sorted(alone)
    assert len(set(alone)) > 1


def test_the_likeliest_come_first_and_the_others_are_left_out() -> None:
    engine, _ = table_engine(4)
    all_of_them = engine.generate_several(PROMPT, SAMPLED, n=6)
    scores = [c.score for c in all_of_them]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > scores[-1]
    best = engine.generate_several(PROMPT, SAMPLED, n=2, best_of=6)
    assert [c.completion.text for c in best] == [c.completion.text for c in all_of_them[:2]]
    assert best[0].completion.logprobs == ()


def test_a_score_is_the_mean_of_the_logprobs() -> None:
    engine, _ = table_engine(2)
    params = dataclasses.replace(SAMPLED, logprobs=1)
    for candidate in engine.generate_several(PROMPT, params, n=3):
        logprobs = [entry.chosen.logprob for entry in candidate.completion.logprobs]
        assert len(logprobs) == candidate.completion.usage.completion_tokens
        assert candidate.score == pytest.approx(sum(logprobs) / len(logprobs))


@pytest.mark.parametrize("numbers", [{"n": 0}, {"n": 2, "best_of": 1}])
def test_impossible_numbers_are_refused_before_anything_runs(numbers: dict[str, int]) -> None:
    engine, runner = table_engine(2)
    with pytest.raises(InvalidParameterError):
        engine.generate_several(PROMPT, SAMPLED, **numbers)
    assert not engine.has_work
    assert runner.steps == []


def test_more_than_may_wait_are_refused_and_none_is_left_behind() -> None:
    engine, _ = table_engine(1, max_waiting=3)
    with pytest.raises(QueueFullError):
        engine.generate_several(PROMPT, SAMPLED, n=9)
    assert not engine.has_work
    assert len(engine.generate_several(PROMPT, SAMPLED, n=3)) == 3


def test_where_one_fails_all_do_and_none_is_left_behind() -> None:
    script = answering("ab", "hello")
    runner = ScriptedRunner(script, vocabulary_size=TOKENIZER.vocabulary_size, fail_at=(3,))
    engine, _ = make_engine(
        script, runner=runner, cache=RowsOf(runner), options=EngineOptions(slots=2)
    )
    with pytest.raises(RunError, match="scripted"):
        engine.generate_several("ab", SamplingParams(temperature=0.0), n=2)
    assert not engine.has_work


def test_who_waits_for_a_sibling_holds_nobody_up() -> None:
    engine, _ = table_engine(2, chunk_size=4)
    group = object()
    ids = TOKENIZER.encode(PROMPT)
    first = engine.submit(ids, SAMPLED, emit=lambda delta: None, group=group)
    second = engine.submit(ids, SAMPLED, emit=lambda delta: None, group=group)
    other = engine.submit(TOKENIZER.encode("xyz"), SAMPLED, emit=lambda delta: None)
    engine.step()
    assert (first.slot is None, second.slot is None, other.slot is None) == (False, True, False)
    while engine.has_work:
        engine.step()
    assert second.cached_tokens == len(PROMPT) - 1


def test_where_who_reads_the_prompt_is_cancelled_the_next_one_reads_it() -> None:
    engine, _ = table_engine(3, chunk_size=4)
    group = object()
    ids = TOKENIZER.encode(PROMPT)
    three = [engine.submit(ids, SAMPLED, emit=lambda d: None, group=group) for _ in range(3)]
    engine.step()
    engine.cancel(three[0])
    engine.step()
    assert (three[1].slot is None, three[2].slot is None) == (False, True)
    while engine.has_work:
        engine.step()
    assert three[1].cached_tokens == 4, "what was read before the cancel is not read again"
    assert three[2].cached_tokens == len(PROMPT) - 1


def test_a_driver_takes_a_group() -> None:
    engine, runner = table_engine(3)
    group = object()
    with EngineDriver(engine) as driver:
        handles = [driver.submit(TOKENIZER.encode(PROMPT), SAMPLED, group=group) for _ in range(3)]
        texts = [Completion.of(handle).text for handle in handles]
    assert len(set(texts)) == 1
    assert evaluated(runner) == len(PROMPT)
