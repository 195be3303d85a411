"""What happens to a sequence whose context is full and that is to go on all the same.

Its first tokens stay, because models lean on them (Xiao et al. 2023, "Efficient Streaming Language
Models with Attention Sinks"), and of the rest the older half goes. Keys carry their position, so
what remains is read again at its new places: moving it there would be wrong. Knows tokens alone.
"""

from __future__ import annotations

from edge_runtime.engine.sequence import Phase, Sequence


def slide(sequence: Sequence, keep_tokens: int) -> int:
    """Drop the older half of what follows the first ``keep_tokens``.

    Returns:
        How many tokens were dropped.
    """
    dropped = (len(sequence.tokens) - keep_tokens) // 2
    assert dropped > 0, "nothing to drop"
    del sequence.tokens[keep_tokens : keep_tokens + dropped]
    sequence.dropped_tokens += dropped
    sequence.held_tokens = min(sequence.held_tokens, keep_tokens)
    sequence.phase = Phase.PREFILL
    return dropped
