from __future__ import annotations

import itertools

from edge_runtime.engine.request import FinishReason
from edge_runtime.engine.scheduler import Scheduler
from edge_runtime.engine.sequence import Phase, Sequence
from edge_runtime.generation.params import SamplingParams


def add(scheduler: Scheduler, *prompt: int) -> Sequence:
    sequence = Sequence(prompt, SamplingParams())
    scheduler.add(sequence)
    return sequence


def run_step(scheduler: Scheduler) -> list[tuple[int, int]]:
    """Do the next step's bookkeeping; gives (sequence id, tokens) of what it did."""
    plan = scheduler.schedule()
    if plan is None:
        return []
    for sequence, count in zip(plan.sequences, plan.token_counts, strict=True):
        sequence.held_tokens += count
        if plan.wants_logits:
            sequence.tokens.append(7)
            sequence.phase = Phase.DECODE
    return [(s.id, n) for s, n in zip(plan.sequences, plan.token_counts, strict=True)]


def test_with_nothing_to_do_there_is_no_step() -> None:
    assert Scheduler(slots=1, chunk_size=4).schedule() is None


def test_a_long_prompt_and_a_running_stream_alternate() -> None:
    scheduler = Scheduler(slots=2, chunk_size=2)
    stream = add(scheduler, 1)
    run_step(scheduler)
    reader = add(scheduler, *range(6))
    steps = [run_step(scheduler) for _ in range(7)]
    assert steps == [
        [(stream.id, 1)],
        [(reader.id, 2)],
        [(stream.id, 1)],
        [(reader.id, 2)],
        [(stream.id, 1)],
        [(reader.id, 2)],
        [(stream.id, 1), (reader.id, 1)],
    ]


def test_a_request_waits_for_a_slot_in_order_of_arrival() -> None:
    scheduler = Scheduler(slots=1, chunk_size=4)
    first, second, third = add(scheduler, 1), add(scheduler, 2), add(scheduler, 3)
    run_step(scheduler)
    assert [s.phase for s in (first, second, third)] == [
        Phase.DECODE,
        Phase.WAITING,
        Phase.WAITING,
    ]
    scheduler.finish(first, FinishReason.STOP)
    assert run_step(scheduler) == [(second.id, 1)]


def test_a_waiting_request_can_be_finished_without_a_slot() -> None:
    scheduler = Scheduler(slots=1, chunk_size=4)
    add(scheduler, 1)
    waiting = add(scheduler, 2)
    run_step(scheduler)
    assert scheduler.finish(waiting, FinishReason.CANCELLED) is None
    assert waiting not in scheduler.unfinished


def test_a_new_request_takes_the_slot_that_shares_most_of_its_prompt() -> None:
    scheduler = Scheduler(slots=2, chunk_size=10)
    a, b = add(scheduler, 1, 2, 3), add(scheduler, 5, 6, 7, 8)
    run_step(scheduler)
    run_step(scheduler)
    run_step(scheduler)
    scheduler.finish(a, FinishReason.STOP)
    scheduler.finish(b, FinishReason.STOP)
    again = add(scheduler, 5, 6, 7, 9)
    assert run_step(scheduler) == [(again.id, 1)]
    assert (again.slot, again.cached_tokens) == (b.slot, 3)


def test_an_unrelated_request_takes_the_slot_with_least_to_lose() -> None:
    scheduler = Scheduler(slots=2, chunk_size=10)
    talk = add(scheduler, 1, 2, 3)
    run_step(scheduler)
    scheduler.finish(talk, FinishReason.STOP)
    other = add(scheduler, 9)
    run_step(scheduler)
    assert other.slot != talk.slot
    again = add(scheduler, 1, 2, 3, 4)
    run_step(scheduler)
    assert (again.slot, again.cached_tokens) == (talk.slot, 3)


def test_slots_with_a_gap_between_them_take_turns() -> None:
    scheduler = Scheduler(slots=3, chunk_size=4)
    a, b, c = add(scheduler, 1), add(scheduler, 2), add(scheduler, 3)
    while Phase.PREFILL in {s.phase for s in (a, b, c)} or Phase.WAITING in {
        s.phase for s in (a, b, c)
    }:
        run_step(scheduler)
    scheduler.finish(b, FinishReason.STOP)
    steps = [run_step(scheduler) for _ in range(4)]
    assert sorted(steps[:2]) == [[(a.id, 1)], [(c.id, 1)]]
    assert steps[2:] == steps[:2]


def test_every_stream_gets_a_token_between_two_chunks() -> None:
    """Also where a gap between slots makes that take several steps."""
    scheduler = Scheduler(slots=4, chunk_size=4)
    a, b, c = (add(scheduler, *range(100 * i, 100 * i + 4)) for i in range(3))
    while not all(s.phase is Phase.DECODE for s in (a, b, c)):
        run_step(scheduler)
    scheduler.finish(b, FinishReason.STOP)
    reader = add(scheduler, *range(500, 520))
    assert reader.slot is None
    steps = [run_step(scheduler) for _ in range(9)]
    chunks = [i for i, step in enumerate(steps) if step == [(reader.id, 4)]]
    assert len(chunks) == 3
    for start, end in itertools.pairwise(chunks):
        between = [sequence for step in steps[start + 1 : end] for sequence, _ in step]
        assert sorted(between) == [a.id, c.id]


def test_short_fresh_prompts_are_read_in_one_step_that_ends_them_all() -> None:
    scheduler = Scheduler(slots=3, chunk_size=64)
    prompts = [add(scheduler, *range(100 * i, 100 * i + 8 + i)) for i in range(3)]
    assert run_step(scheduler) == [(s.id, 8 + i) for i, s in enumerate(prompts)]
    assert run_step(scheduler) == [(s.id, 1) for s in prompts]


def test_chunks_beside_a_stream_shrink_to_the_bound() -> None:
    scheduler = Scheduler(slots=2, chunk_size=64, max_inter_token_s=0.06)
    stream = add(scheduler, *range(64))
    sizes = []
    for step in range(40):
        if step == 2:
            add(scheduler, *range(1000, 3000))
        plan = scheduler.schedule()
        assert plan is not None
        for sequence, count in zip(plan.sequences, plan.token_counts, strict=True):
            sequence.held_tokens += count
            if plan.wants_logits:
                sequence.tokens.append(7)
                sequence.phase = Phase.DECODE
        scheduler.count_step(plan, 0.002 * sum(plan.token_counts))
        if plan.is_prefill and stream not in plan.sequences:
            sizes.append(plan.token_counts[0])
    assert len(sizes) > 10, "the prompt goes on"
    assert set(sizes[8:]) == {24}, "2 ms for the stream and 48 of 58 left"
