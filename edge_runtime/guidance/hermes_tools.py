"""Calls between tags: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``.

The format of Hermes 2 Pro, Qwen 2.5 and 3, SmolLM3 and many others. Source: Nous Research's
function-calling format, https://github.com/NousResearch/Hermes-Function-Calling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edge_runtime.guidance.answer_parts import Content, Part
from edge_runtime.guidance.call_object import CallReader, CallState
from edge_runtime.guidance.marks import MarkFinder
from edge_runtime.guidance.tool_format import (
    CallsSoFar,
    Term,
    ToolPrompt,
    call_rule,
    further_calls,
    long_id,
)
from edge_runtime.guidance.tools import ToolUse

OPENING, CLOSING = "<tool_call>", "</tool_call>"


class HermesFormat:
    """As :class:`edge_runtime.guidance.tool_format.ToolFormat`."""

    marks = (OPENING, CLOSING)

    def rules(self, use: ToolUse, term: Term) -> str:
        """As :meth:`ToolFormat.rules`: text, then calls, then text."""
        opening, closing = term(OPENING), term(CLOSING)
        rules = call_rule(use, arguments_key="arguments")
        rules += f"call: {opening} inside\ninside: /\\n?/ object /\\n?/ {closing}\n"
        if use.must_call:
            return rules + f"answer: call {further_calls(use, 'BLANK call')}\nBLANK: /\\n?/\n"
        # Lazy, so that no text may hold the tag without a call behind it.
        lazy = "" if opening.startswith("<[") else "[lazy]"
        rules += f"opened{lazy}: TEXT {opening}\nrest: TEXT\n"
        more = f"{further_calls(use, 'opened inside')} rest" if use.parallel else ""
        return rules + f"answer: opened inside {more} | rest\n"

    def parser(self) -> HermesParser:
        """As :meth:`ToolFormat.parser`."""
        return HermesParser()

    def prompt(self, messages: Sequence[Mapping[str, Any]], use: ToolUse | None) -> ToolPrompt:
        """As :meth:`ToolFormat.prompt`: these templates read everything as it is."""
        return ToolPrompt(messages, () if use is None else [tool.described for tool in use.tools])


class HermesParser:
    """As :class:`edge_runtime.guidance.tool_format.ToolCallParser`."""

    def __init__(self) -> None:
        self._calls = CallsSoFar(long_id)
        self._opening = MarkFinder(OPENING)
        self._reader: CallReader | None = None
        self._after_call: str | None = None  # what came after a call's object, up to the closing

    def feed(self, text: str) -> list[Part]:
        """As :meth:`ToolCallParser.feed`."""
        parts: list[Part] = []
        while text:
            if self._reader is not None:
                text = self._read_call(text, parts)
            elif self._after_call is not None:
                text = self._read_closing(text, parts)
            else:
                before, after = self._opening.feed(text)
                if before:
                    parts.append(Content(before))
                if after is None:
                    return parts
                self._reader, text = CallReader("arguments", "parameters"), after
        return parts

    def finish(self) -> list[Part]:
        """As :meth:`ToolCallParser.finish`."""
        if self._reader is not None and not self._reader.was_told:
            return [Content(OPENING + self._reader.raw)]
        held = self._opening.flush()
        return [Content(held)] if held and not (self._calls.count and held.isspace()) else []

    def _read_call(self, text: str, parts: list[Part]) -> str:
        assert self._reader is not None
        found, rest = self._calls.parts(self._reader, text)
        if self._reader.state is CallState.MALFORMED:
            parts.append(Content(OPENING))
        parts += found
        if self._reader.state is CallState.DONE:
            self._after_call = ""
        if self._reader.state is not CallState.OPEN:
            self._reader = None
        return rest

    def _read_closing(self, text: str, parts: list[Part]) -> str:
        """Skip blanks and the closing tag; some models leave it out."""
        assert self._after_call is not None
        seen = (self._after_call + text).lstrip()
        if len(seen) < len(CLOSING) and CLOSING.startswith(seen):
            self._after_call = seen
            return ""
        self._after_call = None
        return seen.removeprefix(CLOSING).lstrip("\n")
