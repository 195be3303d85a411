"""Requests that wait for a slot: the most urgent first, and of those the earliest.

Bounded, so that a burst is refused while it can still go elsewhere. Knows nothing of why somebody
waits.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

from edge_runtime.engine.sequence import Sequence
from edge_runtime.errors import QueueFullError


class WaitingQueue:
    """Sequences by falling priority, then by arrival.

    Args:
        limit: most that may wait; None has no limit.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def add(self, sequence: Sequence) -> None:
        """Queue a new request.

        Raises:
            QueueFullError: as many wait as may.
        """
        if self._limit is not None and len(self) >= self._limit:
            raise QueueFullError(len(self), self._limit)
        self.put_back(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Queue one that had a slot already: it came before all that wait with its priority."""
        insort(self._sequences, sequence, key=lambda s: (-s.priority, s.id))

    def remove(self, sequence: Sequence) -> None:
        """Take one out."""
        self._sequences.remove(sequence)
