"""Writes an answer as OpenAI's server-sent events, a piece at a time.

One writer an exchange: it knows what was sent before. Knows the wire form; knows no HTTP and no
engine.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Any

from edge_runtime.api.json_text import json_bytes
from edge_runtime.api.openai_error import ErrorReply
from edge_runtime.api.openai_response import (
    ReplyHead,
    chat_completion,
    chat_finish_reason,
    chat_logprobs,
    text_completion,
    text_logprobs,
    timings_object,
    usage_object,
)
from edge_runtime.engine.request import Completion, Delta, Usage
from edge_runtime.guidance.answer_parser import AnswerParser
from edge_runtime.guidance.answer_parts import CallArguments, CallOpened, Part, Reasoning
from edge_runtime.text.tokenizer import Tokenizer


class ChatWriter:
    """The ``chat.completion.chunk`` events of a chat, or its one object.

    Args:
        head: what every chunk says of itself.
        tokenizer: names the tokens of logprobs.
        include_usage: end with a chunk of the token counts.
        new_parser: takes one answer apart.
    """

    content_type = "text/event-stream"
    ping = b": ping\n\n"
    _kind = "chat.completion.chunk"

    def __init__(
        self,
        head: ReplyHead,
        tokenizer: Tokenizer,
        *,
        include_usage: bool,
        new_parser: Callable[[], AnswerParser] = AnswerParser,
    ) -> None:
        self._head = head
        self._tokenizer = tokenizer
        self._include_usage = include_usage
        self._new_parser = new_parser
        self._parsers: dict[int, AnswerParser] = {}
        self._usages: dict[int, Usage] = {}

    def piece(self, index: int, delta: Delta) -> bytes:
        """The events of a delta of answer ``index``; none where it adds nothing."""
        events = b""
        if index not in self._parsers:
            self._parsers[index] = self._new_parser()
            events += self._event([_choice(index, delta=self._opening())])
        logprobs = self._logprobs(index, delta)
        parser = self._parsers[index]
        parts = parser.feed(delta.text)
        if delta.finish_reason is not None:
            parts += parser.finish()
        said = [_said(part) for part in parts]
        if logprobs is not None and not said:
            said = [{"content": ""}]
        for one in said:
            events += self._event([_choice(index, delta=one, logprobs=logprobs)])
            logprobs = None  # all of a delta's go with its first part
        if delta.finish_reason is not None and delta.usage is not None:
            self._usages[index] = delta.usage
            reason = chat_finish_reason(delta.finish_reason, parser.has_calls)
            choice = _choice(index, delta={}, finish_reason=reason)
            events += self._event([choice], timings=timings_object(delta.usage))
        return events

    def closing(self) -> bytes:
        """What comes after the last delta."""
        events = b""
        if self._include_usage:
            usages = [self._usages[index] for index in sorted(self._usages)]
            events = self._event([], usage=usage_object(usages))
        return events + b"data: [DONE]\n\n"

    def error(self, reply: ErrorReply) -> bytes:
        """The event that ends a stream which has begun and cannot go on."""
        return _as_event(reply.body)

    def whole(self, answers: Sequence[Completion]) -> dict[str, Any]:
        """The one object of an answer that is not streamed."""
        body = chat_completion(self._head, answers, self._tokenizer, self._new_parser)
        return body | {"timings": timings_object(answers[0].usage)}

    def _opening(self) -> dict[str, Any]:
        return {"role": "assistant", "content": ""}

    def _logprobs(self, index: int, delta: Delta) -> dict[str, Any] | None:
        found = chat_logprobs(delta.logprobs, delta.finish_reason, self._tokenizer)
        return found if found is None or found["content"] else None

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return _as_event(_chunk(self._head, self._kind, choices, more, self._include_usage))


class CompletionWriter:
    """The ``text_completion`` events of a plain completion, or its one object.

    Args:
        head, tokenizer, include_usage: as :class:`ChatWriter`.
    """

    content_type = ChatWriter.content_type
    ping = ChatWriter.ping

    def __init__(self, head: ReplyHead, tokenizer: Tokenizer, *, include_usage: bool) -> None:
        self._head = head
        self._tokenizer = tokenizer
        self._include_usage = include_usage
        self._usages: dict[int, Usage] = {}
        self._offsets: dict[int, _Characters] = {}

    def piece(self, index: int, delta: Delta) -> bytes:
        """The event of a delta of answer ``index``; none where it adds nothing."""
        logprobs = self._logprobs(index, delta)
        reason = None if delta.finish_reason is None else delta.finish_reason.value
        if not (delta.text or logprobs or reason):
            return b""
        choice = {
            "index": index, "text": delta.text, "logprobs": logprobs, "finish_reason": reason
        }  # fmt: skip
        more = {}
        if delta.usage is not None:
            self._usages[index] = delta.usage
            more = {"timings": timings_object(delta.usage)}
        return self._event([choice], **more)

    def closing(self) -> bytes:
        """What comes after the last delta."""
        events = b""
        if self._include_usage:
            usages = [self._usages[index] for index in sorted(self._usages)]
            events = self._event([], usage=usage_object(usages))
        return events + b"data: [DONE]\n\n"

    def error(self, reply: ErrorReply) -> bytes:
        """The event that ends a stream which has begun and cannot go on."""
        return _as_event(reply.body)

    def whole(self, answers: Sequence[Completion]) -> dict[str, Any]:
        """The one object of an answer that is not streamed."""
        body = text_completion(self._head, answers, self._tokenizer)
        return body | {"timings": timings_object(answers[0].usage)}

    def _logprobs(self, index: int, delta: Delta) -> dict[str, Any] | None:
        if not delta.logprobs:
            return None
        written = self._offsets.setdefault(index, _Characters())
        found = text_logprobs(
            delta.logprobs, delta.finish_reason, self._tokenizer, offset=written.count
        )
        for entry in delta.logprobs:
            written.add(self._tokenizer.token_bytes(entry.chosen.token_id))
        return found if found is None or found["tokens"] else None

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return _as_event(_chunk(self._head, "text_completion", choices, more, self._include_usage))


class _Characters:
    """Counts the whole characters of bytes that come in pieces."""

    def __init__(self) -> None:
        self.count = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")

    def add(self, piece: bytes) -> None:
        self.count += len(self._decoder.decode(piece))


def _said(part: Part) -> dict[str, Any]:
    """A part as a choice's ``delta``."""
    if isinstance(part, Reasoning):
        return {"reasoning_content": part.text}
    if isinstance(part, CallOpened):
        function = {"name": part.name, "arguments": ""}
        call = {"index": part.index, "id": part.id, "type": "function", "function": function}
        return {"tool_calls": [call]}
    if isinstance(part, CallArguments):
        return {"tool_calls": [{"index": part.index, "function": {"arguments": part.text}}]}
    return {"content": part.text}


def _choice(
    index: int,
    *,
    delta: dict[str, Any],
    logprobs: dict[str, Any] | None = None,
    finish_reason: str | None = None,
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


def _chunk(
    head: ReplyHead,
    kind: str,
    choices: list[dict[str, Any]],
    more: dict[str, Any],
    include_usage: bool,
) -> dict[str, Any]:
    chunk = {
        "id": head.id,
        "object": kind,
        "created": head.created,
        "model": head.model,
        "choices": choices,
    }
    # With usage asked for, OpenAI writes it as null in every chunk but the one that has it.
    return chunk | ({"usage": None} if include_usage else {}) | more


def _as_event(body: object) -> bytes:
    return b"data: " + json_bytes(body) + b"\n\n"
