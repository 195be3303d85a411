"""Writes an answer as Ollama does: newline-delimited JSON, or one object.

Knows the wire form; knows no HTTP and no engine. Source: Ollama's API description (docs/api.md of
its repository).
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from edge_runtime.api.json_text import json_bytes
from edge_runtime.api.openai_error import ErrorReply
from edge_runtime.engine.request import Completion, Delta, FinishReason, Usage


@dataclass(frozen=True)
class Times:
    """What an exchange took, in seconds: waiting for the model to load, and all of it."""

    load_s: float
    total_s: float


class OllamaWriter:
    """The objects of an answer to ``/api/chat`` or ``/api/generate``.

    Args:
        model: the name that the client used.
        chat: messages, as chat has them, or plain ``response`` texts.
        times: asked at the end for what the exchange took.
    """

    content_type = "application/x-ndjson"
    ping = b""  # clients parse every line

    def __init__(self, model: str, *, chat: bool, times: Callable[[], Times]) -> None:
        self._model = model
        self._chat = chat
        self._times = times

    def piece(self, index: int, delta: Delta) -> bytes:
        """The lines of a delta; none where it adds nothing."""
        lines = b""
        if delta.text:
            lines += json_bytes(self._object(delta.text) | {"done": False}) + b"\n"
        if delta.finish_reason is not None and delta.usage is not None:
            done = self._object("") | self._done(delta.finish_reason, delta.usage)
            lines += json_bytes(done) + b"\n"
        return lines

    def closing(self) -> bytes:
        """Nothing: the last object says that it is the last."""
        return b""

    def error(self, reply: ErrorReply) -> bytes:
        """The line that ends a stream which has begun and cannot go on."""
        return json_bytes({"error": reply.message}) + b"\n"

    def whole(self, answers: Sequence[Completion]) -> dict[str, Any]:
        """The one object of an answer that is not streamed."""
        answer = answers[0]
        return self._object(answer.text) | self._done(answer.finish_reason, answer.usage)

    def without_answer(self, reason: str) -> dict[str, Any]:
        """The object for a request that only loads (``load``) or unloads (``unload``) a model."""
        return self._object("") | {"done": True, "done_reason": reason}

    def _object(self, text: str) -> dict[str, Any]:
        said = {"message": {"role": "assistant", "content": text}} if self._chat else {
            "response": text
        }  # fmt: skip
        return {"model": self._model, "created_at": timestamp(), **said}

    def _done(self, reason: FinishReason, usage: Usage) -> dict[str, Any]:
        times = self._times()
        return {
            "done": True,
            "done_reason": reason.value,
            "total_duration": nanoseconds(times.total_s),
            "load_duration": nanoseconds(times.load_s),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": nanoseconds(usage.prefill_s),
            "eval_count": usage.completion_tokens,
            "eval_duration": nanoseconds(usage.decode_s),
        }


def nanoseconds(seconds: float) -> int:
    """As Go's durations are written."""
    return int(seconds * 1e9)


def timestamp(seconds: float | None = None) -> str:
    """RFC 3339 in UTC; now where no time is given."""
    utc = datetime.timezone.utc
    when = (
        datetime.datetime.now(utc)
        if seconds is None
        else datetime.datetime.fromtimestamp(seconds, utc)
    )
    return when.isoformat().replace("+00:00", "Z")
