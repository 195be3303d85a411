"""Decides what the next step does: which sequences, how many tokens of each.

A step is one chunk of one sequence's prompt, or one token of every sequence that decodes. The two
alternate, so that running streams go on while a long prompt is read. Knows token counts and slots;
never sees an array, a text or a session.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from edge_runtime.engine.admission import TokenBudget
from edge_runtime.engine.request import FinishReason
from edge_runtime.engine.sequence import Phase, Sequence
from edge_runtime.engine.slots import CacheChange, Slots
from edge_runtime.engine.waiting import WaitingQueue


@dataclass(frozen=True)
class StepPlan:
    """The work of one step.

    ``token_counts`` gives the new tokens of each sequence, all ones in a decode step.
    ``wants_logits`` is False while a prompt's end is not reached. ``changes`` are to be made to the
    cache before the step, in their order: slots given to sequences, warm prefixes cut. ``preempted``
    are the sequences that lost their slots to it.
    """

    sequences: tuple[Sequence, ...]
    token_counts: tuple[int, ...]
    wants_logits: bool
    is_prefill: bool
    changes: tuple[CacheChange, ...] = ()
    preempted: tuple[Sequence, ...] = ()


class Scheduler:
    """The most urgent first, and of those the earliest, over a fixed number of slots.

    Args:
        slots: rows of the cache.
        chunk_size: most prompt tokens in one step.
        budget: tokens that the cache may hold; None is without a limit.
        max_waiting: most requests that may wait; None is without a limit.
        can_copy: whether there is a cache in which a prefix can be copied from slot to slot.
    """

    def __init__(
        self,
        *,
        slots: int,
        chunk_size: int,
        budget: TokenBudget | None = None,
        max_waiting: int | None = None,
        can_copy: bool = True,
    ) -> None:
        self._chunk_size = chunk_size
        self._slots = Slots(slots, can_copy=can_copy)
        self._waiting = WaitingQueue(max_waiting)
        self._budget = budget
        self._prefilled_last = False
        self._last_decoded_slot = -1
        self.admitting = True
        """Whether requests may start beside others; where none runs, one starts anyhow."""

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence.

        Raises:
            QueueFullError: as many wait as may.
        """
        self._waiting.add(sequence)

    @property
    def running(self) -> list[Sequence]:
        """Sequences that have a slot, in slot order."""
        return self._slots.running

    @property
    def waiting(self) -> int:
        """How many sequences wait for a slot."""
        return len(self._waiting)

    @property
    def unfinished(self) -> list[Sequence]:
        """Sequences that run or wait."""
        return [*self.running, *self._waiting]

    @property
    def held_tokens(self) -> int:
        """Tokens in the cache, of running sequences and of what finished ones left."""
        return self._slots.held_tokens

    @property
    def claimed_tokens(self) -> int:
        """Tokens of the budget that running sequences have a claim on; 0 without a budget."""
        return self._budget.claimed(self.running) if self._budget is not None else 0

    def schedule(self) -> StepPlan | None:
        """The next step, or None when there is nothing to do."""
        changes: list[CacheChange] = []
        preempted = self._make_room(changes)
        self._admit(changes)
        prefilling = [s for s in self.running if s.phase is Phase.PREFILL]
        decoding = [s for s in self.running if s.phase is Phase.DECODE]
        if prefilling and not (decoding and self._prefilled_last):
            self._prefilled_last = True
            sequence = min(prefilling, key=lambda s: (-s.priority, s.id))
            count = min(sequence.pending_tokens, self._chunk_size)
            return StepPlan(
                (sequence,),
                (count,),
                wants_logits=count == sequence.pending_tokens,
                is_prefill=True,
                changes=tuple(changes),
                preempted=preempted,
            )
        self._prefilled_last = False
        if decoding:
            group = self._next_neighbours(decoding)
            return StepPlan(
                group,
                (1,) * len(group),
                wants_logits=True,
                is_prefill=False,
                changes=tuple(changes),
                preempted=preempted,
            )
        return None

    def finish(self, sequence: Sequence, reason: FinishReason) -> int | None:
        """End a sequence in whatever phase it is; its tokens stay warm in its slot.

        Returns:
            The slot that became free, or None if it had none.
        """
        sequence.phase, sequence.finish_reason = Phase.FINISHED, reason
        if sequence.slot is None:
            self._waiting.remove(sequence)
            return None
        return self._slots.vacate(sequence)

    def preempt_youngest(self) -> tuple[Sequence, int] | None:
        """Send the youngest of the least urgent sequences back to the queue, unless it is alone.

        It goes on later from where it was: what it has read and written is read again.

        Returns:
            The sequence and the slot that it had; its tokens are still warm there.
        """
        running = self.running
        if len(running) < 2:
            return None
        victim = min(running, key=lambda s: (s.priority, -s.id))
        slot = self._slots.vacate(victim)
        victim.phase, victim.slot, victim.held_tokens = Phase.WAITING, None, 0
        self._waiting.put_back(victim)
        return victim, slot

    def forget_warm_tokens(self) -> list[int]:
        """Drop what free slots still hold.

        Returns:
            The free slots.
        """
        return self._slots.forget_warm()

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

    def _make_room(self, changes: list[CacheChange]) -> tuple[Sequence, ...]:
        """Keep claims and warm prefixes within the budget: prefixes go first, then the youngest."""
        preempted: list[Sequence] = []
        while self._trim_excess(changes):
            found = self.preempt_youngest()
            if found is None:
                break
            preempted.append(found[0])
        return tuple(preempted)

    def _trim_excess(self, changes: list[CacheChange]) -> int:
        """Cut warm prefixes to the budget; gives the tokens that are still too many."""
        if self._budget is None:
            return 0
        excess = self._budget.excess(self.running, self._slots.warm_tokens)
        if excess:
            trims = self._slots.trim_warm(excess)
            changes += trims
            excess = self._budget.excess(self.running, self._slots.warm_tokens)
        return excess

    def _admit(self, changes: list[CacheChange]) -> None:
        """Start who waits, in order: who does not fit holds those behind up, so that none starves."""
        while (sequence := self._waiting.head) is not None and self._slots.has_free:
            running = self.running
            if running and not self.admitting:
                break
            if self._budget is not None and not self._budget.may_start(sequence, running):
                break
            self._waiting.remove(sequence)
            # What is warm is copied only where nothing has to go for it: it might be the source.
            room = self._budget is None or not self._budget.excess(
                [*running, sequence], self._slots.warm_tokens
            )
            admission = self._slots.place(sequence, copy_warm=room)
            sequence.phase = Phase.PREFILL
            # First, so that no copy is made beside what is to go.
            self._trim_excess(changes)
            changes.append(admission)
