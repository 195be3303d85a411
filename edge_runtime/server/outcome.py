"""What became of a request, for metrics and logs: counts and times, never words.

Knows deltas; knows no HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from edge_runtime.engine.request import Delta


class Outcome(str, Enum):
    """How a request ended."""

    ANSWERED = "answered"
    REFUSED = "refused"  # asked wrongly
    UNAVAILABLE = "unavailable"  # loading, full, or shutting down
    LEFT = "left"  # the client went away
    TIMED_OUT = "timed_out"
    FAILED = "failed"  # the server's fault


@dataclass
class RequestRecord:
    """One request.

    ``seconds`` is from its arrival to its end; tokens are those that were read and written for it.
    """

    endpoint: str
    model: str = ""
    outcome: Outcome = Outcome.FAILED
    status: int | None = None
    seconds: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def note(self, delta: Delta) -> None:
        """Count a delta."""
        self.completion_tokens += len(delta.token_ids)
        if delta.usage is not None:
            self.prompt_tokens = delta.usage.prompt_tokens
            self.cached_tokens = delta.usage.cached_tokens
