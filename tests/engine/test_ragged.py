from __future__ import annotations

from edge_runtime.engine.ragged import ragged_group
from edge_runtime.engine.sequence import Sequence
from edge_runtime.generation.params import SamplingParams


def fresh(slot: int, tokens: int, held: int = 0) -> Sequence:
    sequence = Sequence(tuple(range(tokens)), SamplingParams())
    sequence.slot, sequence.held_tokens = slot, held
    return sequence


def slots_of(group: tuple[Sequence, ...]) -> list[int | None]:
    return [sequence.slot for sequence in group]


def test_neighbours_of_similar_length_are_read_together() -> None:
    prompts = [fresh(0, 10), fresh(1, 9), fresh(2, 8)]
    assert slots_of(ragged_group(prompts[1], prompts, 64)) == [0, 1, 2]


def test_padding_is_at_most_a_fifth() -> None:
    first, short, alike = fresh(1, 10), fresh(0, 5), fresh(2, 10)
    assert slots_of(ragged_group(first, [first, short], 64)) == [1]
    assert slots_of(ragged_group(first, [first, short, alike], 64)) == [0, 1, 2], "5 of 30 tokens"


def test_the_step_stays_within_the_chunk() -> None:
    prompts = [fresh(slot, 20) for slot in range(5)]
    assert slots_of(ragged_group(prompts[4], prompts, 64)) == [2, 3, 4]
    assert slots_of(ragged_group(prompts[0], prompts, 39)) == [0]


def test_a_gap_between_slots_ends_a_group() -> None:
    prompts = [fresh(0, 10), fresh(2, 10), fresh(3, 10)]
    assert slots_of(ragged_group(prompts[0], prompts, 64)) == [0]
    assert slots_of(ragged_group(prompts[2], prompts, 64)) == [2, 3]


def test_a_row_that_holds_something_is_read_alone() -> None:
    held, beside = fresh(0, 10, held=2), fresh(1, 8)
    assert ragged_group(held, [held, beside], 64) == (held,)
    assert ragged_group(beside, [held, beside], 64) == (beside,)


def test_a_prompt_longer_than_the_chunk_is_read_alone() -> None:
    prompts = [fresh(0, 100), fresh(1, 100)]
    assert ragged_group(prompts[0], prompts, 64) == (prompts[0],)
