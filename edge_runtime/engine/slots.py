"""The rows of the cache: whose each is, and what free ones still hold of their last sequence.

What the rows hold, and which of them suits a sequence, :mod:`edge_runtime.engine.prefix_cache`
knows. Never sees the cache's memory: what is to be done to it comes out as :data:`CacheChange`.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from edge_runtime.engine.prefix_cache import PrefixCache
from edge_runtime.engine.sequence import Sequence


@dataclass(frozen=True)
class Admission:
    """A sequence that was given a slot.

    Its first ``held_tokens`` are in that slot already, or in the slot ``copied_from``, from where
    they are to be copied before the step. ``lost_tokens`` were warm in the slot and go.
    """

    sequence: Sequence
    copied_from: int | None
    lost_tokens: int = 0


@dataclass(frozen=True)
class Trim:
    """A free slot that keeps its first ``keep_tokens`` tokens; the pages past them go."""

    slot: int
    keep_tokens: int


# To be done to the cache's memory before a step, in the order given.
CacheChange = Admission | Trim


class Slots:
    """A fixed number of rows.

    Args:
        count: how many.
        can_copy: whether what one holds can be copied to another.
    """

    def __init__(self, count: int, *, can_copy: bool = True) -> None:
        self._can_copy = can_copy
        self._running: dict[int, Sequence] = {}
        self._prefixes = PrefixCache(slots=count)

    @property
    def running(self) -> list[Sequence]:
        """Sequences that have a slot, in slot order."""
        return [sequence for _, sequence in sorted(self._running.items())]

    @property
    def has_free(self) -> bool:
        """Whether a slot is free."""
        return bool(self._prefixes.free)

    @property
    def warm_tokens(self) -> int:
        """Tokens that free slots hold."""
        return self._prefixes.warm_tokens

    @property
    def held_tokens(self) -> int:
        """Tokens in the cache, of running sequences and of what finished ones left."""
        return self.warm_tokens + sum(s.held_tokens for s in self.running)

    def place(self, sequence: Sequence, *, copy_warm: bool = True) -> Admission:
        """Give a sequence the free slot that suits it best; there must be one.

        Args:
            sequence: as yet without a slot.
            copy_warm: whether there is memory for a copy of what stays warm in another slot.
        """
        held: dict[int, int] = {}
        if self._can_copy:
            held = {slot: other.held_tokens for slot, other in self._running.items()}
        place = self._prefixes.place(
            sequence.tokens, running=held, copy_warm=copy_warm and self._can_copy
        )
        sequence.held_tokens = place.shared_tokens
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.held_tokens
        sequence.slot, self._running[place.slot] = place.slot, sequence
        return Admission(sequence, place.copied_from, place.lost_tokens)

    def vacate(self, sequence: Sequence) -> int:
        """Free a sequence's slot; its tokens stay warm there.

        Returns:
            The slot.
        """
        assert sequence.slot is not None
        del self._running[sequence.slot]
        self._prefixes.leave(sequence.slot, sequence.tokens[: sequence.held_tokens])
        return sequence.slot

    def rewrite(self, sequence: Sequence) -> None:
        """A running sequence's tokens have changed, beyond having grown."""
        assert sequence.slot is not None
        self._prefixes.rewrite(sequence.slot, sequence.tokens)

    def trim_warm(self, excess: int) -> list[Trim]:
        """Drop ``excess`` warm tokens, or all where there are fewer: what is worth least first."""
        return [Trim(slot, kept) for slot, kept in self._prefixes.trim(excess)]

    def forget_warm(self) -> list[int]:
        """Drop what free slots still hold.

        Returns:
            The free slots.
        """
        free = self._prefixes.free
        for slot in free:
            self._prefixes.forget(slot)
        return free

    def slot_of(self, tokens: Ordered[int]) -> int | None:
        """A free slot that begins with all of these tokens."""
        return self._prefixes.row_of(tokens)

    def empty_slot(self) -> int | None:
        """A free slot, of those the one with least to lose; it holds nothing any more."""
        slot = self._prefixes.least_valuable()
        if slot is not None:
            self._prefixes.forget(slot)
        return slot

    def fill(self, slot: int, tokens: Ordered[int]) -> None:
        """A free slot has been filled with what belongs to these tokens."""
        self._prefixes.leave(slot, tokens)
