"""What goes into the engine and what comes out: plain frozen values between rooms.

Knows no array and no session.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class FinishReason(str, Enum):
    """Why generation ended."""

    STOP = "stop"  # an end token or a stop string
    LENGTH = "length"  # max_tokens reached, or the context is full
    CANCELLED = "cancelled"  # the caller left
    ERROR = "error"  # the run failed; the handle raises


@dataclass(frozen=True)
class TokenLogprob:
    """One token and its natural-log probability before penalties and filters."""

    token_id: int
    logprob: float


@dataclass(frozen=True)
class ChosenLogprob:
    """The chosen token and, where asked for, the likeliest ones in falling order."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...]


@dataclass(frozen=True)
class Usage:
    """Token counts and times of one request.

    ``ttft_s`` runs from submission to the first token; ``prefill_s`` and ``decode_s`` are time
    spent in steps. ``cached_tokens`` of the prompt were already in the cache. ``draft_tokens`` were
    evaluated on a guess, and ``accepted_draft_tokens`` of them are part of the answer.
    ``dropped_tokens`` of prompt and answer were let go on the way because the context was full:
    what came after them was written without them.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    ttft_s: float
    prefill_s: float
    decode_s: float
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    dropped_tokens: int = 0


@dataclass(frozen=True)
class TokenDelta:
    """One generated token, at the lowest rung: ids only."""

    token_id: int
    logprob: ChosenLogprob | None
    finish_reason: FinishReason | None


@dataclass(frozen=True)
class Delta:
    """A piece of the answer.

    ``text`` is whole characters and never part of a stop string; it may be empty. ``usage`` is
    set on the last delta, together with ``finish_reason``.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[ChosenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    usage: Usage | None = None


@dataclass(frozen=True)
class Completion:
    """A whole answer."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[ChosenLogprob, ...]
    finish_reason: FinishReason
    usage: Usage

    @classmethod
    def of(cls, deltas: Iterable[Delta]) -> Completion:
        """The answer that these deltas, all of a request's, make up."""
        pieces = list(deltas)
        last = pieces[-1]
        assert last.finish_reason is not None and last.usage is not None, "the answer goes on"
        return cls(
            text="".join(d.text for d in pieces),
            token_ids=tuple(t for d in pieces for t in d.token_ids),
            logprobs=tuple(p for d in pieces for p in d.logprobs),
            finish_reason=last.finish_reason,
            usage=last.usage,
        )
