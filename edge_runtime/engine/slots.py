"""The rows of the cache: whose each is, and what free ones still hold of their last sequence.

Chooses the row for a new sequence and what of the warm prefixes goes first. Knows tokens and
counts; never sees the cache's memory: what is to be done to it comes out as :data:`CacheChange`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field

from edge_runtime.engine.sequence import Sequence

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
class Trim:
    """A free slot that keeps its first ``keep_tokens`` tokens; the pages past them go."""

    slot: int
    keep_tokens: int


# To be done to the cache's memory before a step, in the order given.
CacheChange = Admission | Trim


@dataclass
class _Slot:
    """A row of the cache: whose it is, and the tokens it holds from its last sequence."""

    index: int
    sequence: Sequence | None = None
    warm_tokens: list[int] = field(default_factory=list)
    vacated: int = 0

    @property
    def held(self) -> list[int]:
        """The tokens whose keys and values are in the row now."""
        if self.sequence is None:
            return self.warm_tokens
        return self.sequence.tokens[: self.sequence.held_tokens]


class Slots:
    """A fixed number of rows.

    Args:
        count: how many.
    """

    def __init__(self, count: int) -> None:
        self._slots = [_Slot(i) for i in range(count)]
        self._vacations = itertools.count(1)

    @property
    def running(self) -> list[Sequence]:
        """Sequences that have a slot, in slot order."""
        return [s.sequence for s in self._slots if s.sequence is not None]

    @property
    def has_free(self) -> bool:
        """Whether a slot is free."""
        return any(slot.sequence is None for slot in self._slots)

    @property
    def warm_tokens(self) -> int:
        """Tokens that free slots hold."""
        return sum(len(slot.warm_tokens) for slot in self._slots)

    @property
    def held_tokens(self) -> int:
        """Tokens in the cache, of running sequences and of what finished ones left."""
        return self.warm_tokens + sum(s.held_tokens for s in self.running)

    def place(self, sequence: Sequence) -> Admission:
        """Give a sequence the free slot that suits it best; there must be one.

        That is the slot which shares most of its tokens, and where none does, the one with least to
        lose. What another slot, running or not, holds beyond that is copied from there.
        """
        tokens = sequence.tokens
        free = [slot for slot in self._slots if slot.sequence is None]
        shared, _, slot = max(
            ((shared_prefix(s.warm_tokens, tokens), -len(s.warm_tokens), s) for s in free),
            key=lambda choice: choice[:2],
        )
        donor = max(self._slots, key=lambda s: shared_prefix(s.held, tokens))
        offered = shared_prefix(donor.held, tokens)
        copied_from = None
        if offered >= shared + _WORTH_COPYING_TOKENS:
            shared, copied_from = offered, donor.index
        # The last token is evaluated even when it is held: its logits are needed.
        sequence.held_tokens = min(shared, len(tokens) - 1)
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.held_tokens
        sequence.slot, slot.sequence = slot.index, sequence
        slot.warm_tokens = []
        return Admission(sequence, copied_from)

    def vacate(self, sequence: Sequence) -> int:
        """Free a sequence's slot; its tokens stay warm there.

        Returns:
            The slot.
        """
        assert sequence.slot is not None
        slot = self._slots[sequence.slot]
        slot.sequence = None
        slot.warm_tokens = sequence.tokens[: sequence.held_tokens]
        slot.vacated = next(self._vacations)
        return slot.index

    def trim_warm(self, excess: int) -> list[Trim]:
        """Drop ``excess`` warm tokens, or all where there are fewer: the longest unused go first.

        A prefix loses its end, so that what is left of it still serves.
        """
        trims = []
        for slot in sorted(self._slots, key=lambda s: s.vacated):
            if excess > 0 and slot.warm_tokens:
                dropped = min(excess, len(slot.warm_tokens))
                del slot.warm_tokens[len(slot.warm_tokens) - dropped :]
                excess -= dropped
                trims.append(Trim(slot.index, len(slot.warm_tokens)))
        return trims

    def forget_warm(self) -> list[int]:
        """Drop what free slots still hold.

        Returns:
            The free slots.
        """
        free = [slot for slot in self._slots if slot.sequence is None]
        for slot in free:
            slot.warm_tokens = []
        return [slot.index for slot in free]


def shared_prefix(a: Ordered[int], b: Ordered[int]) -> int:
    """How many leading tokens two token lists share."""
    length = min(len(a), len(b))
    return next((i for i in range(length) if a[i] != b[i]), length)
