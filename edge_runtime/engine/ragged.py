"""Which fresh prompts are read together: neighbours of similar length, padded to the longest.

Several short prompts in one step read the weights once. The graph takes rows of several lengths
only where none of them holds anything yet (onnxruntime before 1.32), and only neighbouring rows of
the cache. Knows counts and slots alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from edge_runtime.engine.sequence import Sequence

# A padding token costs what a real one does. Reading a prompt of 8 tokens alone costs about 1.6
# times as much a token as in a chunk of 64, so that a fifth of padding always leaves a gain.
_MOST_PADDING = 0.2


def ragged_group(
    first: Sequence, prefilling: Iterable[Sequence], most_tokens: int
) -> tuple[Sequence, ...]:
    """The prompts to read in one step with ``first``, in slot order; it alone where none suits.

    Args:
        first: who is next.
        prefilling: all sequences that have something to read, ``first`` among them.
        most_tokens: of the step, padding included.
    """
    assert first.slot is not None
    fresh = {s.slot: s for s in prefilling if not s.held_tokens and s.slot is not None}
    if first.slot not in fresh:
        return (first,)
    lowest, highest = first.slot, first.slot
    while lowest - 1 in fresh:
        lowest -= 1
    while highest + 1 in fresh:
        highest += 1
    windows = (
        tuple(fresh[slot] for slot in range(start, end + 1))
        for start in range(lowest, first.slot + 1)
        for end in range(first.slot, highest + 1)
    )
    return max((w for w in windows if _fits(w, most_tokens)), key=_tokens, default=(first,))


def _tokens(group: tuple[Sequence, ...]) -> int:
    return sum(s.pending_tokens for s in group)


def _fits(group: tuple[Sequence, ...], most_tokens: int) -> bool:
    area = len(group) * max(s.pending_tokens for s in group)
    return area <= most_tokens and area - _tokens(group) <= _MOST_PADDING * area
