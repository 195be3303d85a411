"""One request as the engine sees it: its tokens, how many of them the cache holds, its phase.

Knows counts and tokens; knows no text, no array and no session.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from enum import Enum, auto

from edge_runtime.engine.request import FinishReason
from edge_runtime.generation.params import SamplingParams

_ids = itertools.count(1)


class Phase(Enum):
    """Where a sequence is in its life."""

    WAITING = auto()  # no slot, or none any more
    PREFILL = auto()  # some of its tokens are not in the cache
    DECODE = auto()  # one new token a step
    FINISHED = auto()


@dataclass(eq=False)
class Sequence:
    """A request in progress.

    ``held_tokens`` counts the leading tokens of ``tokens`` whose keys and values are in the slot.
    ``cached_tokens`` of the prompt were found in the cache when it first started. A sequence that
    loses its slot keeps its tokens, and reads them again in the next. ``dropped_tokens`` went from
    ``tokens`` because the context was full. Sequences of one ``group`` have the same prompt, which
    the first of them reads for all.
    """

    prompt: tuple[int, ...]
    params: SamplingParams
    tokens: list[int] = field(init=False)
    priority: int = 0
    group: object | None = None
    id: int = field(default_factory=lambda: next(_ids))
    phase: Phase = Phase.WAITING
    slot: int | None = None
    held_tokens: int = 0
    cached_tokens: int | None = None
    dropped_tokens: int = 0
    cancel_requested: bool = False
    finish_reason: FinishReason | None = None
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    @property
    def pending_tokens(self) -> int:
        """Tokens that are not in the cache yet."""
        return len(self.tokens) - self.held_tokens

    @property
    def completion_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) + self.dropped_tokens - len(self.prompt)
