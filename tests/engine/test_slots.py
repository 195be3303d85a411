from __future__ import annotations

from edge_runtime.engine.sequence import Sequence
from edge_runtime.engine.slots import Admission, Slots, Trim
from edge_runtime.generation.params import SamplingParams


def occupied(slots: Slots, *prompt: int) -> Sequence:
    """A sequence in a slot, with all of its prompt held."""
    sequence = Sequence(prompt, SamplingParams())
    slots.place(sequence)
    sequence.held_tokens = len(prompt)
    return sequence


def test_the_longest_unused_prefixes_are_cut_first_and_from_their_end() -> None:
    slots = Slots(3)
    old, new, busy = occupied(slots, 1, 2, 3), occupied(slots, 4, 5, 6, 7), occupied(slots, 8)
    slots.vacate(old)
    slots.vacate(new)
    assert slots.trim_warm(5) == [Trim(old.slot or 0, 0), Trim(1, 2)]
    assert (slots.warm_tokens, slots.held_tokens) == (2, 3)
    again = Sequence((4, 5, 6, 7), SamplingParams())
    slots.place(again)
    assert (again.slot, again.held_tokens) == (new.slot, 2)
    assert busy in slots.running


def test_trimming_more_than_is_warm_leaves_what_runs() -> None:
    slots = Slots(2)
    done, busy = occupied(slots, 1, 2), occupied(slots, 3, 4, 5)
    slots.vacate(done)
    assert slots.trim_warm(100) == [Trim(0, 0)]
    assert slots.trim_warm(1) == []
    assert slots.held_tokens == busy.held_tokens


def test_what_a_running_sequence_shares_is_copied_when_it_is_worth_it() -> None:
    slots = Slots(3)
    occupied(slots, *range(40))
    much, little = (
        Sequence((*range(20), 99), SamplingParams()),
        Sequence((*range(3), 99), SamplingParams()),
    )
    assert slots.place(much) == Admission(much, copied_from=0)
    assert slots.place(little) == Admission(little, copied_from=None)
    assert (much.held_tokens, little.held_tokens) == (20, 0)


def test_a_sequence_that_comes_back_reads_again_what_its_slot_lost() -> None:
    slots = Slots(1)
    sequence = occupied(slots, 1, 2, 3)
    sequence.tokens += [4, 5]
    sequence.held_tokens = 4
    slots.vacate(sequence)
    sequence.slot, sequence.held_tokens = None, 0
    slots.trim_warm(1)
    slots.place(sequence)
    assert (sequence.held_tokens, sequence.pending_tokens) == (3, 2)
    assert sequence.cached_tokens == 0, "what it found when it first started"
