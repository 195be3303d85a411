"""Who may start: how many tokens of the cache are promised, and to whom there is more to give.

Either all that a request may come to need is reserved when it starts, so that nothing that runs
ever has to yield; or only what it holds now counts, more requests run at a time, and when the
tokens run out somebody has to yield. Knows counts alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from edge_runtime.engine.options import AdmissionMode
from edge_runtime.engine.sequence import Sequence

# An optimistic start leaves each running sequence this many tokens to grow by. Otherwise one that
# has just been preempted would come back for a token or two, and its prompt be read again each time.
# A small budget leaves a sixteenth.
_GROWTH_TOKENS = 32


class TokenBudget:
    """Tokens that the cache may hold, and who has a claim on them.

    Args:
        tokens: what may be held in all; None is without a limit. At least ``context_length``, so
            that any one request can run alone.
        context_length: most that one sequence holds.
        mode: how claims are counted.
    """

    def __init__(
        self,
        tokens: int | None,
        *,
        context_length: int,
        mode: AdmissionMode = AdmissionMode.RESERVE,
    ) -> None:
        assert tokens is None or tokens >= context_length, "one request must fit"
        self.tokens = tokens
        self._context_length = context_length
        self._mode = mode

    def claim(self, sequence: Sequence) -> int:
        """Tokens that a running sequence has a claim on."""
        if self._mode is AdmissionMode.OPTIMISTIC:
            return len(sequence.tokens)
        longest = sequence.params.max_tokens
        if longest is None:
            return self._context_length
        return min(self._context_length, len(sequence.prompt) + longest)

    def claimed(self, running: Iterable[Sequence]) -> int:
        """Tokens that running sequences have a claim on."""
        return sum(map(self.claim, running))

    def may_start(self, sequence: Sequence, running: list[Sequence]) -> bool:
        """Whether there is room for one more; alone there always is."""
        if self.tokens is None or not running:
            return True
        growth = 0
        if self._mode is AdmissionMode.OPTIMISTIC:
            growth = min(_GROWTH_TOKENS, self.tokens // 16) * (len(running) + 1)
        return self.claimed(running) + self.claim(sequence) + growth <= self.tokens

    def spare(self, running: Iterable[Sequence], warm_tokens: int) -> int | None:
        """Tokens that a step may add beyond one a sequence; None is without a limit.

        What is reserved counts already; warm prefixes do not give way to a guess.
        """
        if self.tokens is None or self._mode is AdmissionMode.RESERVE:
            return None
        return max(0, self.tokens - self.claimed(running) - warm_tokens)

    def excess(self, running: Iterable[Sequence], warm_tokens: int) -> int:
        """Tokens by which claims and warm prefixes go over the budget; 0 where they do not."""
        if self.tokens is None:
            return 0
        return max(0, self.claimed(running) + warm_tokens - self.tokens)
