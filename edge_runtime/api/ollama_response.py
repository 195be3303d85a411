"""Writes an answer as Ollama does: newline-delimited JSON, or one object.

Knows the wire form; knows no HTTP and no engine. Source: Ollama's API description (docs/api.md of
its repository).
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from edge_runtime.api.json_text import json_bytes
from edge_runtime.api.openai_error import ErrorReply
from edge_runtime.engine.request import Completion, Delta, FinishReason, Usage
from edge_runtime.guidance.answer_parser import AnswerParser
from edge_runtime.guidance.answer_parts import (
    CallArguments,
    CallOpened,
    Message,
    Part,
    ToolCall,
    message_of,
)


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
        new_parser: takes the answer apart.
    """

    content_type = "application/x-ndjson"
    ping = b""  # clients parse every line

    def __init__(
        self,
        model: str,
        *,
        chat: bool,
        times: Callable[[], Times],
        new_parser: Callable[[], AnswerParser] = AnswerParser,
    ) -> None:
        self._model = model
        self._chat = chat
        self._times = times
        self._parser = new_parser()
        self._call: list[Part] = []  # the one being read: a call goes out whole

    def piece(self, index: int, delta: Delta) -> bytes:
        """The lines of a delta; none where it adds nothing."""
        lines = b""
        parts = self._parser.feed(delta.text)
        if delta.finish_reason is not None:
            parts += self._parser.finish()
        for message in self._messages(parts, ended=delta.finish_reason is not None):
            lines += json_bytes(self._said(message) | {"done": False}) + b"\n"
        if delta.finish_reason is not None and delta.usage is not None:
            done = self._said(_NOTHING) | self._done(delta.finish_reason, delta.usage)
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
        parts = self._parser.feed(answer.text) + self._parser.finish()
        return self._said(_readable(message_of(parts))) | self._done(
            answer.finish_reason, answer.usage
        )

    def without_answer(self, reason: str) -> dict[str, Any]:
        """The object for a request that only loads (``load``) or unloads (``unload``) a model."""
        return self._said(_NOTHING) | {"done": True, "done_reason": reason}

    def _messages(self, parts: list[Part], *, ended: bool) -> Iterator[Message]:
        for part in parts:
            if isinstance(part, CallArguments):
                self._call.append(part)
                continue
            yield from self._whole_call()
            if isinstance(part, CallOpened):
                self._call = [part]
            else:
                yield message_of([part])
        if ended:
            yield from self._whole_call()

    def _whole_call(self) -> Iterator[Message]:
        call, self._call = self._call, []
        if call:
            yield _readable(message_of(call))

    def _said(self, message: Message) -> dict[str, Any]:
        thinking = {"thinking": message.reasoning} if message.reasoning else {}
        said: dict[str, Any] = {"response": message.content, **thinking}
        if self._chat:
            spoken = {"role": "assistant", "content": message.content, **thinking}
            calls = [_call_object(call) for call in message.tool_calls]
            said = {"message": spoken | ({"tool_calls": calls} if calls else {})}
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


_NOTHING = Message("", "", ())


def _readable(message: Message) -> Message:
    """Calls that were cut become content: here arguments are an object, and half of one is none."""
    calls = tuple(call for call in message.tool_calls if _arguments(call) is not None)
    cut = [call.arguments for call in message.tool_calls if call not in calls]
    return Message(message.content + "".join(cut), message.reasoning, calls)


def _call_object(call: ToolCall) -> dict[str, Any]:
    return {"function": {"name": call.name, "arguments": _arguments(call)}}


def _arguments(call: ToolCall) -> dict[str, Any] | None:
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        return None
    return arguments if isinstance(arguments, dict) else None


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
