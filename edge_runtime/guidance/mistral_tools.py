"""Calls behind ``[TOOL_CALLS]``: a list of objects, or since version 11 a name and its arguments.

``[TOOL_CALLS][{"name": ..., "arguments": {...}}]`` and ``[TOOL_CALLS]name[ARGS]{...}``, repeated.
Source: Mistral's tokenizer, https://github.com/mistralai/mistral-common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edge_runtime.guidance.answer_parts import CallArguments, Content, Part
from edge_runtime.guidance.call_object import CallReader, CallState
from edge_runtime.guidance.grammar import literal
from edge_runtime.guidance.marks import MarkFinder
from edge_runtime.guidance.tool_format import (
    CallsSoFar,
    Term,
    ToolPrompt,
    call_rule,
    further_calls,
    short_id,
)
from edge_runtime.guidance.tools import ToolUse

OPENING, ARGUMENTS = "[TOOL_CALLS]", "[ARGS]"


class MistralFormat:
    """As :class:`edge_runtime.guidance.tool_format.ToolFormat`.

    Args:
        named: whether the name stands before the arguments, and not in a list of objects.
    """

    def __init__(self, *, named: bool) -> None:
        self._named = named
        self.marks: tuple[str, ...] = (OPENING, ARGUMENTS) if named else (OPENING,)

    def rules(self, use: ToolUse, term: Term) -> str:
        """As :meth:`ToolFormat.rules`: text, then calls, and nothing after them."""
        opening = term(OPENING)
        if self._named:
            calls = " | ".join(
                f"{literal(tool.name)} {term(ARGUMENTS)} @args{i}"
                for i, tool in enumerate(use.callable)
            )
            more = further_calls(use, f"{opening} one")
            rules = f"one: {calls}\ncalls: one {more}\n"
        else:
            rules = call_rule(use, arguments_key="arguments")
            more = further_calls(use, '", " object')
            rules += f'calls: / ?/ "[" object {more} "]"\n'
        if use.must_call:
            return rules + f"answer: {opening} calls\n"
        lazy = "" if opening.startswith("<[") else "[lazy]"
        rules += f"opened{lazy}: TEXT {opening}\n"
        return rules + "answer: opened calls | rest\nrest: TEXT\n"

    def parser(self) -> MistralParser:
        """As :meth:`ToolFormat.parser`."""
        return MistralParser()

    def prompt(self, messages: Sequence[Mapping[str, Any]], use: ToolUse | None) -> ToolPrompt:
        """As :meth:`ToolFormat.prompt`: these templates read everything as it is."""
        return ToolPrompt(messages, () if use is None else [tool.described for tool in use.tools])


class MistralParser:
    """As :class:`edge_runtime.guidance.tool_format.ToolCallParser`; it reads both forms."""

    def __init__(self) -> None:
        self._calls = CallsSoFar(short_id)
        self._opening = MarkFinder(OPENING)
        self._inside = False
        self._reader: CallReader | None = None
        self._held = ""  # inside, what no call was made of yet
        self._depth: int | None = None  # of bare arguments' braces, or None outside of them
        self._in_string = self._escaped = False

    def feed(self, text: str) -> list[Part]:
        """As :meth:`ToolCallParser.feed`."""
        parts: list[Part] = []
        while text:
            if not self._inside:
                before, after = self._opening.feed(text)
                if before:
                    parts.append(Content(before))
                if after is None:
                    return parts
                self._inside, text = True, after
            elif self._depth is not None:
                text = self._read_arguments(text, parts)
            elif self._reader is not None:
                text = self._read_object(text, parts)
            else:
                text = self._read_between(text, parts)
        return parts

    def finish(self) -> list[Part]:
        """As :meth:`ToolCallParser.finish`."""
        if self._reader is not None and not self._reader.was_told:
            raw = self._reader.raw
            return [Content(raw if self._calls.count else f"{OPENING}{self._held}{raw}")]
        if self._inside:
            # A list's end, or the beginning of a call that did not come.
            return [] if self._calls.count or self._depth else [Content(OPENING + self._held)]
        return [Content(held)] if (held := self._opening.flush()) else []

    def _read_object(self, text: str, parts: list[Part]) -> str:
        assert self._reader is not None
        found, rest = self._calls.parts(self._reader, text)
        if self._reader.state is CallState.MALFORMED:
            parts.append(Content(OPENING + self._held))
            self._inside = False
        parts += found
        if self._reader.state is not CallState.OPEN:
            self._reader, self._held = None, ""
        return rest

    def _read_between(self, text: str, parts: list[Part]) -> str:
        """A list's brackets and commas, or a name, up to the brace that begins an object."""
        before, brace, after = text.partition("{")
        self._held += before
        if not brace:
            return ""
        name = self._held.replace(OPENING, "").replace(ARGUMENTS, "").strip(" ,;\n[]")
        if not name:
            self._reader = CallReader("arguments", "parameters")
        else:
            parts.append(self._calls.open(name))
            self._held, self._depth = "", 0
        return brace + after

    def _read_arguments(self, text: str, parts: list[Part]) -> str:
        assert self._depth is not None
        for position, character in enumerate(text):
            if self._in_string:
                self._in_string = self._escaped or character != '"'
                self._escaped = not self._escaped and character == "\\"
            elif character == '"':
                self._in_string = True
            elif character in "{}":
                self._depth += 1 if character == "{" else -1
                if self._depth == 0:
                    parts.append(CallArguments(self._calls.count - 1, text[: position + 1]))
                    self._depth = None
                    return text[position + 1 :]
        parts.append(CallArguments(self._calls.count - 1, text))
        return ""
