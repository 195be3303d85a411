"""Which tokens each row of the cache holds, and which row a new prompt should take.

What a finished sequence leaves in its row stays warm: the next prompt that begins alike evaluates
only what is new, in that row or in another that its beginning is copied to. What is given up is
what is worth least: the tokens that no other row holds, times how often they were used, divided by
how long ago that was. Knows token ids and rows; knows no sequence, no queue and no keys or values.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Copying a token costs a sixteenth of evaluating it, most of it for memory that is touched anew; each
# copy costs as much as a token or two besides.
_WORTH_COPYING_TOKENS = 4
_COPYING_COST = 0.06

Tokens = NDArray[np.int32]
_NONE: Tokens = np.zeros(0, np.int32)


@dataclass(frozen=True)
class Placement:
    """Where a prompt goes.

    Its first ``shared_tokens`` are in row ``slot`` already, or in row ``copied_from``, from where
    they are to be copied. ``lost_tokens`` were warm in the row, and are of no use to the prompt.
    """

    slot: int
    shared_tokens: int
    copied_from: int | None
    lost_tokens: int


@dataclass
class _Row:
    """The tokens of a finished sequence, or those that a running one began with."""

    tokens: Tokens
    taken: bool = False
    uses: int = 1
    used_at: int = 0


class PrefixCache:
    """The rows of the cache, by the tokens that they hold.

    Args:
        slots: how many rows there are.
    """

    def __init__(self, *, slots: int) -> None:
        self._rows = [_Row(_NONE) for _ in range(slots)]
        self._clock = 0  # ticks when a prompt is placed and when a sequence ends

    @property
    def free(self) -> list[int]:
        """Rows that no sequence has."""
        return [slot for slot, row in enumerate(self._rows) if not row.taken]

    @property
    def warm_tokens(self) -> int:
        """Tokens in free rows."""
        return sum(len(row.tokens) for row in self._rows if not row.taken)

    def place(
        self, prompt: Ordered[int], *, running: Mapping[int, int], copy_warm: bool
    ) -> Placement:
        """Give a prompt the free row that costs least; there must be a free one.

        The cost is what would be lost in the row, and what is left to evaluate or to copy: a prompt
        that goes on with a row's tokens stays there, and one that shares but a beginning with them
        gets a copy of it in a row that has less to lose.

        Args:
            prompt: the token ids.
            running: for each row that a sequence has, how many of the tokens that it began with
                are in the row by now.
            copy_warm: whether there is memory to copy what stays warm in a free row; what a running
                sequence holds may be copied anyhow.

        Returns:
            The place, which is taken now. The last token of the prompt never counts as shared: its
            logits are needed.
        """
        ids = np.array(prompt, np.int32)
        rows = self._rows
        shared = [
            shared_prefix(row.tokens[: running.get(slot, 0)] if row.taken else row.tokens, ids[:-1])
            for slot, row in enumerate(rows)
        ]

        def source(slot: int) -> int:
            """The row whose tokens the prompt would use in this one."""
            offers = [n for n, row in enumerate(rows) if row.taken or copy_warm or n == slot]
            best = max(offers, key=lambda n: (shared[n], n == slot))
            return best if shared[best] >= shared[slot] + _WORTH_COPYING_TOKENS else slot

        def cost(slot: int) -> float:
            used = shared[source(slot)]
            copying = (used - shared[slot]) * _COPYING_COST
            return self._worth(slot, kept_tokens=shared[slot]) + copying - used

        slot = min(self.free, key=cost)
        used = source(slot)
        self._clock += 1
        if shared[used]:
            rows[used].uses += 1
            rows[used].used_at = self._clock
        lost = len(rows[slot].tokens) - shared[slot]
        uses = rows[slot].uses if used == slot and shared[used] else 1
        rows[slot] = _Row(ids, taken=True, uses=uses, used_at=self._clock)
        return Placement(slot, shared[used], None if used == slot else used, lost)

    def leave(self, slot: int, tokens: Ordered[int]) -> None:
        """A row's sequence has ended, or it was filled otherwise: these tokens stay in it."""
        self._clock += 1
        row = self._rows[slot]
        row.tokens, row.taken, row.used_at = np.array(tokens, np.int32), False, self._clock

    def rewrite(self, slot: int, tokens: Ordered[int]) -> None:
        """A row's running sequence goes on with other tokens than it began with."""
        self._rows[slot].tokens = np.array(tokens, np.int32)

    def row_of(self, tokens: Ordered[int]) -> int | None:
        """A free row that begins with all of these tokens."""
        wanted = np.array(tokens, np.int32)
        held = (n for n in self.free if shared_prefix(self._rows[n].tokens, wanted) == len(wanted))
        return next(held, None)

    def least_valuable(self) -> int | None:
        """The free row with least to lose; None where no row is free."""
        return min(self.free, key=self._worth, default=None)

    def trim(self, excess: int) -> list[tuple[int, int]]:
        """Drop ``excess`` warm tokens, or all where there are fewer: what is worth least first.

        A prefix loses its end, so that what is left of it still serves.

        Returns:
            Rows, and how many tokens each keeps.
        """
        kept: list[tuple[int, int]] = []
        while excess > 0:
            warm = [slot for slot in self.free if len(self._rows[slot].tokens)]
            if not warm:
                break
            slot = min(warm, key=self._worth)
            row = self._rows[slot]
            dropped = min(excess, len(row.tokens))
            row.tokens = row.tokens[: len(row.tokens) - dropped]
            excess -= dropped
            kept.append((slot, len(row.tokens)))
        return kept

    def forget(self, slot: int) -> None:
        """A free row holds nothing any more."""
        self._rows[slot] = _Row(_NONE)

    def _worth(self, slot: int, *, kept_tokens: int = 0) -> float:
        """What would be lost with a free row, in tokens that may have to be evaluated again.

        Args:
            slot: the row.
            kept_tokens: what would stay in it.
        """
        row = self._rows[slot]
        if kept_tokens >= len(row.tokens):
            return 0.0
        others = (other.tokens for n, other in enumerate(self._rows) if n != slot)
        elsewhere = max((shared_prefix(tokens, row.tokens) for tokens in others), default=0)
        lost = len(row.tokens) - max(kept_tokens, elsewhere)
        return lost * row.uses / (1 + self._clock - row.used_at)


def shared_prefix(a: Tokens, b: Tokens) -> int:
    """How many leading tokens two arrays share."""
    length = min(len(a), len(b))
    if not length:
        return 0
    differs = a[:length] != b[:length]
    first = int(differs.argmax())
    return first if differs[first] else length
