from __future__ import annotations

import dataclasses
import threading

import pytest
from support.scripted_engine import GREEDY, TOKENIZER, answering, make_engine

from edge_runtime.engine.metrics import EngineMetrics, PressureAction, StepKind
from edge_runtime.engine.options import EngineOptions
from edge_runtime.engine.request import FinishReason
from edge_runtime.errors import RunError
from edge_runtime.testing import ScriptedRunner


def test_counts_are_added_by_name_and_an_unknown_name_is_a_defect() -> None:
    metrics = EngineMetrics()
    metrics.add(draft_tokens_proposed=4, draft_tokens_accepted=3)
    metrics.add(draft_tokens_proposed=4)
    found = metrics.snapshot()
    assert (found.counts.draft_tokens_proposed, found.acceptance) == (8, 3 / 8)
    with pytest.raises(KeyError):
        metrics.add(drafts=1)


def test_a_snapshot_does_not_change_afterwards() -> None:
    metrics = EngineMetrics()
    before = metrics.snapshot()
    metrics.count_pressure(PressureAction.PREEMPT)
    metrics.count_first_token(0.2)
    assert before.pressure[PressureAction.PREEMPT] == before.ttft_s.count == 0
    assert metrics.snapshot().pressure[PressureAction.PREEMPT] == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.counts.preemptions = 1  # type: ignore[misc]


def test_distributions_count_in_buckets_up_to_and_with_their_bound() -> None:
    metrics = EngineMetrics()
    for seconds in (0.01, 0.011, 1000.0):
        metrics.count_first_token(seconds)
    ttft = metrics.snapshot().ttft_s
    assert ttft.counts[:2] == (1, 1)
    assert ttft.counts[-1] == 1
    assert (ttft.count, ttft.sum) == (3, pytest.approx(1000.021))
    assert (ttft.quantile(0.3), ttft.quantile(0.6), ttft.quantile(0.9)) == (
        0.01,
        0.025,
        float("inf"),
    )
    assert metrics.snapshot().queue_s.quantile(0.5) is None


def test_padding_and_ragged_prefills_are_counted() -> None:
    metrics = EngineMetrics()
    metrics.count_step(StepKind.PREFILL, rows=3, tokens=25, width=10, seconds=0.5)
    metrics.count_step(StepKind.DECODE, rows=3, tokens=3, width=1, seconds=0.1)
    found = metrics.snapshot()
    assert (found.counts.padding_tokens, found.counts.ragged_prefills) == (5, 1)
    assert found.padding_waste == 5 / 28
    assert found.step_seconds[StepKind.PREFILL] == 0.5


def test_threads_lose_no_count() -> None:
    metrics = EngineMetrics()

    def work() -> None:
        for _ in range(2000):
            metrics.add(generated_tokens=1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert metrics.snapshot().counts.generated_tokens == 8000


def test_an_engine_counts_its_steps_tokens_and_ends() -> None:
    engine, _ = make_engine(answering("hi there", "hello"), options=EngineOptions(slots=2))
    engine.generate("hi there", GREEDY)
    engine.generate("hi there", dataclasses.replace(GREEDY, max_tokens=1))
    found = engine.metrics.snapshot()
    counts = found.counts
    assert (counts.requests_submitted, counts.prompt_tokens, counts.cached_tokens) == (2, 16, 7)
    assert (counts.prefix_hits, counts.generated_tokens, counts.evaluated_tokens) == (1, 7, 14)
    assert found.steps[StepKind.PREFILL] == 2
    assert found.steps[StepKind.DECODE] == counts.decode_rows == 5
    assert found.batch_occupancy == 0.5
    assert found.finished[FinishReason.STOP] == found.finished[FinishReason.LENGTH] == 1
    assert (found.ttft_s.count, found.inter_token_s.count, found.queue_s.count) == (2, 5, 2)
    assert found.time_per_token_s.count == 1
    assert (found.gauges.slots, found.gauges.running, found.gauges.waiting) == (2, 0, 0)


def test_gauges_show_who_runs_and_who_waits() -> None:
    engine, _ = make_engine(answering("hi", "hello"))
    for _ in range(3):
        engine.submit(TOKENIZER.encode("hi"), GREEDY, emit=lambda delta: None)
    assert engine.metrics.snapshot().gauges.waiting == 3
    engine.step()
    gauges = engine.metrics.snapshot().gauges
    assert (gauges.running, gauges.waiting) == (1, 2)


def test_a_failed_run_is_counted_with_the_requests_that_it_failed() -> None:
    size = TOKENIZER.vocabulary_size
    runner = ScriptedRunner(answering("hi", "hello"), vocabulary_size=size, fail_at=(2,))
    engine, _ = make_engine(answering("hi", "hello"), runner=runner)
    with pytest.raises(RunError):
        engine.generate("hi", GREEDY)
    found = engine.metrics.snapshot()
    assert (found.counts.run_errors, found.finished[FinishReason.ERROR]) == (1, 1)
