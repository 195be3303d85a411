"""Decides what the next step does: which sequences, how many tokens of each.

A step is one chunk of one sequence's prompt, or one token of every sequence that decodes. The two
alternate, so that running streams go on while a long prompt is read. Knows token counts and slots;
never sees an array, a text or a session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field

from edge_runtime.engine.request import FinishReason
from edge_runtime.engine.sequence import Phase, Sequence

# Copying a token's keys and values takes a hundredth of evaluating it, but has a cost of its own.
_WORTH_COPYING_TOKENS = 16


@dataclass(frozen=True)
class Admission:
    """A sequence that was given a slot.

    Its first ``held_tokens`` are in that slot already, or in the slot ``copied_from``, from where
    they are to be copied before the step.
    """

    sequence: Sequence
    copied_from: int | None


@dataclass(frozen=True)
class StepPlan:
    """The work of one step.

    ``token_counts`` gives the new tokens of each sequence, all ones in a decode step.
    ``wants_logits`` is False while a prompt's end is not reached. ``admitted`` are the sequences
    that have just been given their slots.
    """

    sequences: tuple[Sequence, ...]
    token_counts: tuple[int, ...]
    wants_logits: bool
    is_prefill: bool
    admitted: tuple[Admission, ...] = ()


@dataclass
class _Slot:
    """A row of the cache: whose it is, and the tokens it holds from its last sequence."""

    index: int
    sequence: Sequence | None = None
    warm_tokens: list[int] = field(default_factory=list)

    @property
    def held(self) -> list[int]:
        """The tokens whose keys and values are in the row now."""
        if self.sequence is None:
            return self.warm_tokens
        return self.sequence.tokens[: self.sequence.held_tokens]


class Scheduler:
    """First come, first served, over a fixed number of slots.

    Args:
        slots: rows of the cache.
        chunk_size: most prompt tokens in one step.
    """

    def __init__(self, *, slots: int, chunk_size: int) -> None:
        self._chunk_size = chunk_size
        self._slots = [_Slot(i) for i in range(slots)]
        self._waiting: deque[Sequence] = deque()
        self._prefilled_last = False
        self._last_decoded_slot = -1

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self._waiting.append(sequence)

    @property
    def running(self) -> list[Sequence]:
        """Sequences that have a slot, in slot order."""
        return [s.sequence for s in self._slots if s.sequence is not None]

    @property
    def unfinished(self) -> list[Sequence]:
        """Sequences that run or wait."""
        return [*self.running, *self._waiting]

    @property
    def held_tokens(self) -> int:
        """Tokens in the cache, of running sequences and of what finished ones left."""
        return sum(
            len(slot.warm_tokens) if slot.sequence is None else slot.sequence.held_tokens
            for slot in self._slots
        )

    def schedule(self) -> StepPlan | None:
        """The next step, or None when there is nothing to do."""
        admitted = self._admit()
        prefilling = [s for s in self.running if s.phase is Phase.PREFILL]
        decoding = [s for s in self.running if s.phase is Phase.DECODE]
        if prefilling and not (decoding and self._prefilled_last):
            self._prefilled_last = True
            sequence = min(prefilling, key=lambda s: s.id)
            pending = len(sequence.tokens) - sequence.held_tokens
            count = min(pending, self._chunk_size)
            return StepPlan(
                (sequence,),
                (count,),
                wants_logits=count == pending,
                is_prefill=True,
                admitted=admitted,
            )
        self._prefilled_last = False
        if decoding:
            group = self._next_neighbours(decoding)
            ones = (1,) * len(group)
            return StepPlan(group, ones, wants_logits=True, is_prefill=False, admitted=admitted)
        return None

    def finish(self, sequence: Sequence, reason: FinishReason) -> int | None:
        """End a sequence in whatever phase it is; its tokens stay warm in its slot.

        Returns:
            The slot that became free, or None if it had none yet.
        """
        sequence.phase, sequence.finish_reason = Phase.FINISHED, reason
        if sequence.slot is None:
            self._waiting.remove(sequence)
            return None
        slot = self._slots[sequence.slot]
        slot.sequence = None
        slot.warm_tokens = sequence.tokens[: sequence.held_tokens]
        return slot.index

    def forget_warm_tokens(self) -> list[int]:
        """Drop what free slots still hold.

        Returns:
            The free slots.
        """
        free = [slot for slot in self._slots if slot.sequence is None]
        for slot in free:
            slot.warm_tokens = []
        return [slot.index for slot in free]

    def _next_neighbours(self, decoding: Ordered[Sequence]) -> tuple[Sequence, ...]:
        """A step reads neighbouring rows of the cache: runs of them take turns."""
        groups: list[list[Sequence]] = []
        for sequence in decoding:
            slot = sequence.slot
            assert slot is not None
            if groups and groups[-1][-1].slot == slot - 1:
                groups[-1].append(sequence)
            else:
                groups.append([sequence])
        starts = [group[0].slot or 0 for group in groups]
        later = [i for i, start in enumerate(starts) if start > self._last_decoded_slot]
        group = groups[later[0] if later else 0]
        self._last_decoded_slot = group[-1].slot or 0
        return tuple(group)

    def _admit(self) -> tuple[Admission, ...]:
        admitted: list[Admission] = []
        while self._waiting:
            free = [slot for slot in self._slots if slot.sequence is None]
            if not free:
                break
            sequence = self._waiting.popleft()
            # Where nothing is shared, what would be lost decides.
            shared, _, slot = max(
                (
                    (shared_prefix(s.warm_tokens, sequence.prompt), -len(s.warm_tokens), s)
                    for s in free
                ),
                key=lambda choice: choice[:2],
            )
            donor = max(self._slots, key=lambda s: shared_prefix(s.held, sequence.prompt))
            offered = shared_prefix(donor.held, sequence.prompt)
            copied_from = None
            if offered >= shared + _WORTH_COPYING_TOKENS:
                shared, copied_from = offered, donor.index
            # The last prompt token is evaluated even when it is held: its logits are needed.
            sequence.held_tokens = sequence.cached_tokens = min(shared, len(sequence.prompt) - 1)
            sequence.slot, slot.sequence = slot.index, sequence
            slot.warm_tokens = []
            sequence.phase = Phase.PREFILL
            admitted.append(Admission(sequence, copied_from))
        return tuple(admitted)


def shared_prefix(a: Ordered[int], b: Ordered[int]) -> int:
    """How many leading tokens two token lists share."""
    length = min(len(a), len(b))
    return next((i for i in range(length) if a[i] != b[i]), length)
