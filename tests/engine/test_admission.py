"""Who starts when, by the budget of tokens: the scheduler and the engine over doubles."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence as Ordered

import pytest
from support.scripted_engine import GREEDY, TOKENIZER, RowsOf, make_engine

from edge_runtime.engine.admission import TokenBudget
from edge_runtime.engine.options import AdmissionMode, EngineOptions
from edge_runtime.engine.request import Delta, FinishReason
from edge_runtime.engine.scheduler import Scheduler
from edge_runtime.engine.sequence import Phase, Sequence
from edge_runtime.errors import EdgeRuntimeError, InvalidParameterError, QueueFullError
from edge_runtime.generation.params import SamplingParams
from edge_runtime.testing import ScriptedRunner


def request(prompt_tokens: int, max_tokens: int | None, *, priority: int = 0) -> Sequence:
    params = SamplingParams(max_tokens=max_tokens)
    return Sequence(tuple(range(prompt_tokens)), params, priority=priority)


def reserving(tokens: int, *, slots: int = 4, context: int = 50) -> Scheduler:
    budget = TokenBudget(tokens, context_length=context)
    return Scheduler(slots=slots, chunk_size=100, budget=budget)


def test_a_request_reserves_its_prompt_and_its_longest_answer_up_to_the_context() -> None:
    budget = TokenBudget(100, context_length=50)
    assert budget.claim(request(10, 5)) == 15
    assert budget.claim(request(10, None)) == 50
    assert budget.claim(request(10, 1000)) == 50


def test_an_optimistic_claim_is_what_is_there_now() -> None:
    budget = TokenBudget(100, context_length=50, mode=AdmissionMode.OPTIMISTIC)
    sequence = request(10, None)
    sequence.tokens.append(1)
    assert budget.claim(sequence) == 11


def test_who_does_not_fit_waits_and_holds_up_those_behind() -> None:
    scheduler = reserving(60)
    big, bigger, small = request(30, 10), request(30, 20), request(1, 1)
    for sequence in (big, bigger, small):
        scheduler.add(sequence)
    scheduler.schedule()
    assert [s.phase for s in (big, bigger, small)] == [
        Phase.PREFILL,
        Phase.WAITING,
        Phase.WAITING,
    ]
    assert scheduler.claimed_tokens == 40
    scheduler.finish(big, FinishReason.STOP)
    scheduler.schedule()
    assert small.phase is bigger.phase is Phase.PREFILL


def test_warm_prefixes_make_way_for_what_starts() -> None:
    scheduler = reserving(60)
    done = request(30, 10)
    scheduler.add(done)
    scheduler.schedule()
    done.held_tokens = 30
    scheduler.finish(done, FinishReason.STOP)
    other = Sequence(tuple(range(900, 940)), SamplingParams(max_tokens=5))
    scheduler.add(other)
    plan = scheduler.schedule()
    assert plan is not None
    assert other.slot != done.slot
    assert scheduler.held_tokens == 15, "60 less the 45 that the new one reserves"
    assert [type(change).__name__ for change in plan.changes] == ["Trim", "Admission"]


def test_a_more_urgent_request_starts_first() -> None:
    scheduler = reserving(50, slots=1)
    calm, urgent = request(5, 5), request(5, 5, priority=1)
    scheduler.add(calm)
    scheduler.add(urgent)
    plan = scheduler.schedule()
    assert plan is not None and plan.sequences == (urgent,)


def test_the_youngest_of_the_least_urgent_yields() -> None:
    scheduler = reserving(200)
    old, young, urgent = request(5, 5), request(5, 5), request(5, 5, priority=1)
    for sequence in (old, young, urgent):
        scheduler.add(sequence)
    scheduler.schedule()
    found = scheduler.preempt_youngest()
    assert found is not None and found[0] is young
    assert (young.phase, young.slot, young.held_tokens) == (Phase.WAITING, None, 0)
    scheduler.preempt_youngest()
    assert scheduler.running == [urgent]
    assert scheduler.preempt_youngest() is None, "who is alone goes on"


def counting(seen: Ordered[int]) -> int:
    """Each token is the last one plus one, among letters: wrong if a token was lost."""
    return ord("a") + (seen[-1] - ord("a") + 1) % 26


def answers(options: EngineOptions, prompts: Ordered[str], tokens: int) -> tuple[list[str], object]:
    runner = ScriptedRunner(counting, vocabulary_size=TOKENIZER.vocabulary_size)
    engine, _ = make_engine(
        counting, options=options, runner=runner, cache=RowsOf(runner), context=60
    )
    texts = [""] * len(prompts)
    params = dataclasses.replace(GREEDY, max_tokens=tokens)
    for i, prompt in enumerate(prompts):

        def emit(delta: Delta | EdgeRuntimeError, i: int = i) -> None:
            assert isinstance(delta, Delta)
            texts[i] += delta.text

        engine.submit(TOKENIZER.encode(prompt), params, emit=emit)
    budget = options.cache_tokens
    while engine.has_work:
        engine.step()
        held = engine.memory().cache_tokens
        assert budget is None or held <= budget, f"{held} of {budget} tokens held"
    return texts, engine.metrics.snapshot()


PROMPTS = ("abcdefgh", "klmnopqr", "defghijk", "pqrstuvw")


def test_preempted_requests_go_on_where_they_were() -> None:
    expected, _ = answers(EngineOptions(slots=1), PROMPTS, 40)
    options = EngineOptions(slots=4, cache_tokens=150, admission="optimistic")
    found, metrics = answers(options, PROMPTS, 40)
    assert found == expected
    assert metrics.counts.preemptions > 0  # type: ignore[attr-defined]
    assert metrics.counts.recomputed_tokens > 0  # type: ignore[attr-defined]
    assert metrics.queue_s.count == len(PROMPTS), "a comeback is no second admission"  # type: ignore[attr-defined]


def test_reserving_never_preempts_and_keeps_to_the_budget() -> None:
    expected, _ = answers(EngineOptions(slots=1), PROMPTS, 40)
    found, metrics = answers(EngineOptions(slots=4, cache_tokens=100), PROMPTS, 40)
    assert found == expected
    assert metrics.counts.preemptions == 0  # type: ignore[attr-defined]


def test_a_budget_below_the_context_shortens_it() -> None:
    engine, _ = make_engine(counting, options=EngineOptions(cache_tokens=20), context=60)
    assert engine.context_length == 20
    completion = engine.generate("abcd", GREEDY)
    assert (completion.usage.completion_tokens, completion.finish_reason) == (
        16,
        FinishReason.LENGTH,
    )


def test_a_full_queue_refuses_and_is_counted() -> None:
    engine, _ = make_engine(counting, options=EngineOptions(max_waiting=2))
    params = dataclasses.replace(GREEDY, max_tokens=2)

    def submit() -> None:
        engine.submit(TOKENIZER.encode("a"), params, emit=lambda delta: None)

    submit()
    submit()
    with pytest.raises(QueueFullError):
        submit()
    while engine.has_work:
        engine.step()
    submit()
    counts = engine.metrics.snapshot().counts
    assert (counts.requests_submitted, counts.requests_refused) == (3, 1)


def test_an_unknown_admission_is_refused_by_value() -> None:
    with pytest.raises(InvalidParameterError, match="'greedy'"):
        EngineOptions(admission="greedy")
