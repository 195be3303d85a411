"""Decides what the next step does: which sequences, how many tokens of each.

A step is one chunk of one sequence's prompt, several short fresh prompts, or one token of every
sequence that decodes. The kinds alternate, so that running streams go on while a long prompt is
read. Knows token counts and slots; never sees an array, a text or a session.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from edge_runtime.engine.admission import TokenBudget
from edge_runtime.engine.pacing import ChunkPacer
from edge_runtime.engine.ragged import ragged_group
from edge_runtime.engine.request import FinishReason
from edge_runtime.engine.sequence import Phase, Sequence
from edge_runtime.engine.sliding import slide
from edge_runtime.engine.slots import CacheChange, Slots, Trim
from edge_runtime.engine.waiting import WaitingQueue


@dataclass(frozen=True)
class StepPlan:
    """The work of one step.

    ``token_counts`` gives the new tokens of each sequence, all ones in a decode step without drafts.
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
    drafts: tuple[int, ...] = ()
    """Guesses of what follows the pending token of the only sequence, counted with it."""


class Scheduler:
    """The most urgent first, and of those the earliest, over a fixed number of slots.

    Args:
        slots: rows of the cache.
        chunk_size: most prompt tokens in one step.
        budget: tokens that the cache may hold; None is without a limit.
        max_waiting: most requests that may wait; None is without a limit.
        can_copy: whether there is a cache in which a prefix can be copied from slot to slot.
        max_inter_token_s: how long a stream may wait for its next token because prompts are read;
            None reads full chunks.
    """

    def __init__(
        self,
        *,
        slots: int,
        chunk_size: int,
        budget: TokenBudget | None = None,
        max_waiting: int | None = None,
        can_copy: bool = True,
        max_inter_token_s: float | None = None,
    ) -> None:
        self._pacer = ChunkPacer(chunk_size, max_inter_token_s)
        self._slots = Slots(slots, can_copy=can_copy)
        self._can_copy = can_copy
        self._waiting = WaitingQueue(max_waiting)
        self._budget = budget
        self._prefilled_last = False
        self._owed: set[int] = set()  # streams that get a token before the next chunk is read
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
    def warm_tokens(self) -> int:
        """Tokens in the cache that finished sequences left."""
        return self._slots.warm_tokens

    @property
    def claimed_tokens(self) -> int:
        """Tokens of the budget that running sequences have a claim on; 0 without a budget."""
        return self._budget.claimed(self.running) if self._budget is not None else 0

    @property
    def spare_tokens(self) -> int | None:
        """Tokens that a step may add beyond one a sequence; None is without a limit."""
        if self._budget is None:
            return None
        return self._budget.spare(self.running, self._slots.warm_tokens)

    def schedule(self) -> StepPlan | None:
        """The next step, or None when there is nothing to do."""
        changes: list[CacheChange] = []
        preempted = self._make_room(changes)
        self._admit(changes)
        prefilling = [s for s in self.running if s.phase is Phase.PREFILL]
        decoding = [s for s in self.running if s.phase is Phase.DECODE]
        groups = _neighbours(decoding)
        if self._prefilled_last:
            self._owed = {s.id for s in decoding}
        self._prefilled_last = bool(prefilling) and not any(s.id in self._owed for s in decoding)
        if self._prefilled_last:
            group, counts = self._next_chunk(prefilling, decode_steps=len(groups))
        elif groups:
            group = self._next_group(groups)
            counts = (1,) * len(group)
            self._owed -= {s.id for s in group}
        else:
            return None
        return StepPlan(
            group,
            counts,
            wants_logits=counts[0] == group[0].pending_tokens,
            is_prefill=self._prefilled_last,
            changes=tuple(changes),
            preempted=preempted,
        )

    def count_step(self, plan: StepPlan, seconds: float) -> None:
        """Learn what a step has cost, so that the next chunks are of a suitable size."""
        if plan.is_prefill:
            self._pacer.count_prefill(len(plan.sequences) * max(plan.token_counts), seconds)
        else:
            self._pacer.count_decode(seconds)

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

    def slot_of(self, tokens: Ordered[int]) -> int | None:
        """A free slot that begins with all of these tokens."""
        return self._slots.slot_of(tokens)

    def make_room(self, tokens: int) -> tuple[int, list[CacheChange]] | None:
        """Empty a free slot for so many tokens from outside, and cut warm prefixes for them.

        Returns:
            The slot, and what is to be done to the cache first; None where there is no room now.
        """
        if self._excess(tokens - self._slots.warm_tokens):
            return None
        slot = self._slots.empty_slot()
        if slot is None:
            return None
        changes: list[CacheChange] = [Trim(slot, 0)]
        changes += self._slots.trim_warm(self._excess(tokens))
        return slot, changes

    def fill(self, slot: int, tokens: Ordered[int]) -> None:
        """What belongs to these tokens is in the slot now, and warm there."""
        self._slots.fill(slot, tokens)

    def _excess(self, more_warm_tokens: int) -> int:
        """Tokens over the budget, if there were so many more that are warm."""
        if self._budget is None:
            return 0
        return self._budget.excess(self.running, self._slots.warm_tokens + more_warm_tokens)

    def slide(self, sequence: Sequence, keep_tokens: int) -> int:
        """Let a running sequence whose context is full go on, without some of its tokens.

        Returns:
            How many tokens were dropped; those behind them are read again.
        """
        dropped = slide(sequence, keep_tokens)
        self._slots.rewrite(sequence)
        return dropped

    def forget_warm_tokens(self) -> list[int]:
        """Drop what free slots still hold.

        Returns:
            The free slots.
        """
        return self._slots.forget_warm()

    def _next_chunk(
        self, prefilling: Ordered[Sequence], *, decode_steps: int
    ) -> tuple[tuple[Sequence, ...], tuple[int, ...]]:
        """Part of the prompt of who is next, or the whole of it and of its neighbours'."""
        most = self._pacer.chunk_tokens(decode_steps)
        first = min(prefilling, key=lambda s: (-s.priority, s.id))
        group = ragged_group(first, prefilling, most)
        return group, tuple(min(s.pending_tokens, most) for s in group)

    def _next_group(self, groups: Ordered[tuple[Sequence, ...]]) -> tuple[Sequence, ...]:
        """Groups of neighbouring slots take turns."""
        starts = [group[0].slot or 0 for group in groups]
        later = [i for i, start in enumerate(starts) if start > self._last_decoded_slot]
        group = groups[later[0] if later else 0]
        self._last_decoded_slot = group[-1].slot or 0
        return group

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

    def _next_waiting(self) -> Sequence | None:
        """Who is next; those whose prompt one of their group is reading wait to copy it."""
        reading = {
            s.group
            for s in (self.running if self._can_copy else ())
            if s.group is not None and s.phase is Phase.PREFILL and s.pending_tokens > 1
        }
        return next((s for s in self._waiting if s.group not in reading), None)

    def _admit(self, changes: list[CacheChange]) -> None:
        """Start who waits, in order: who does not fit holds those behind up, so that none starves."""
        while self._slots.has_free and (sequence := self._next_waiting()) is not None:
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


def _neighbours(decoding: Ordered[Sequence]) -> list[tuple[Sequence, ...]]:
    """A step reads neighbouring rows of the cache: the runs of them, in slot order."""
    groups: list[list[Sequence]] = []
    for sequence in decoding:
        slot = sequence.slot
        assert slot is not None
        if groups and groups[-1][-1].slot == slot - 1:
            groups[-1].append(sequence)
        else:
            groups.append([sequence])
    return [tuple(group) for group in groups]
