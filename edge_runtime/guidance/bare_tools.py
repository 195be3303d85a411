"""Calls that are the whole answer: JSON objects with a name and arguments, one after the other.

Llama 3.1 and later write ``{"name": ..., "parameters": {...}}``, some of them after
``<|python_tag|>``. For models whose template knows no tools, or describes them in a way that is
not known here, the same form with ``arguments`` is asked for in the system message. Source: Meta's
prompt format, https://www.llama.com/docs/model-cards-and-prompt-formats/llama3_1/.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from edge_runtime.guidance.answer_parts import Content, Part
from edge_runtime.guidance.call_object import CallReader, CallState
from edge_runtime.guidance.grammar import literal
from edge_runtime.guidance.tool_format import (
    CallsSoFar,
    Term,
    ToolPrompt,
    call_rule,
    further_calls,
    long_id,
)
from edge_runtime.guidance.tools import ToolUse

_PYTHON_TAG = "<|python_tag|>"
_INSTRUCTION = """You can call functions. These are the functions, as JSON schemas:
{tools}
To call one, answer with nothing but a JSON object of this form, one line for each call:
{{"name": "the function's name", "arguments": {{"the argument's name": "its value"}}}}"""


class BareFormat:
    """As :class:`edge_runtime.guidance.tool_format.ToolFormat`.

    Args:
        arguments_key: under which the family writes arguments.
        separator: between calls.
        marks: what the family may write before its calls.
    """

    def __init__(self, arguments_key: str, *, separator: str, marks: tuple[str, ...] = ()) -> None:
        self._key = arguments_key
        self._separator = separator
        self.marks = marks

    def rules(self, use: ToolUse, term: Term) -> str:
        """As :meth:`ToolFormat.rules`: calls or text; a text that is no call begins otherwise."""
        rules = call_rule(use, arguments_key=self._key)
        before = "".join(f"({term(mark)})? " for mark in self.marks)
        more = further_calls(use, f"{literal(self._separator)} object")
        rules += f"calls: {before}object {more}\n"
        if use.must_call:
            return rules + "answer: calls\n"
        return rules + "answer: calls | rest\nrest: OTHERWISE\nOTHERWISE: TEXT & /([^{](?s:.*))?/\n"

    def parser(self) -> BareParser:
        """As :meth:`ToolFormat.parser`."""
        return BareParser(self.marks)

    def prompt(self, messages: Sequence[Mapping[str, Any]], use: ToolUse | None) -> ToolPrompt:
        """As :meth:`ToolFormat.prompt`: these templates read everything as it is."""
        return ToolPrompt(messages, () if use is None else [tool.described for tool in use.tools])


class Llama3Format(BareFormat):
    """The form of Llama 3.1, 3.2 and 3.3."""

    def __init__(self) -> None:
        super().__init__("parameters", separator="; ", marks=(_PYTHON_TAG,))


class GenericFormat(BareFormat):
    """For models that were taught no form: it is described in the system message."""

    def __init__(self) -> None:
        super().__init__("arguments", separator="\n")

    def prompt(self, messages: Sequence[Mapping[str, Any]], use: ToolUse | None) -> ToolPrompt:
        """Describe the tools, and write earlier calls and their results as plain messages."""
        plain: list[Mapping[str, Any]] = []
        names: dict[str, str] = {}
        for message in messages:
            calls = message.get("tool_calls") or []
            for call in calls:
                names[str(call.get("id"))] = str(call.get("function", {}).get("name"))
            if calls:
                plain.append({"role": "assistant", "content": self._written(message, calls)})
            elif message.get("role") == "tool":
                plain.append(_result(message, names))
            else:
                plain.append(message)
        merged = _merged(plain)
        return ToolPrompt(merged if use is None else _described(merged, use), ())

    def _written(self, message: Mapping[str, Any], calls: Sequence[Mapping[str, Any]]) -> str:
        lines = [_text(message.get("content"))] if message.get("content") else []
        for call in calls:
            function = call.get("function", {})
            arguments = function.get("arguments") or "{}"
            if not isinstance(arguments, str):
                arguments = json.dumps(arguments, ensure_ascii=False)
            name = json.dumps(str(function.get("name")))
            lines.append(f'{{"name": {name}, "{self._key}": {arguments}}}')
        return self._separator.join(lines)


def _result(message: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    name = message.get("name") or names.get(str(message.get("tool_call_id")))
    of = f" of {name}" if name else ""
    return {"role": "user", "content": f"Result{of}: {_text(message.get('content'))}"}


def _merged(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """One user message where results follow one another: many templates want turns to alternate."""
    merged: list[Mapping[str, Any]] = []
    for message in messages:
        last = merged[-1] if merged else {}
        if message.get("role") == "user" == last.get("role"):
            both = f"{_text(last.get('content'))}\n{_text(message.get('content'))}"
            merged[-1] = {**last, "content": both}
        else:
            merged.append(message)
    return merged


def _described(messages: Sequence[Mapping[str, Any]], use: ToolUse) -> list[Mapping[str, Any]]:
    tools = "\n".join(json.dumps(tool.described, ensure_ascii=False) for tool in use.tools)
    instruction = _INSTRUCTION.format(tools=tools)
    if messages and messages[0].get("role") == "system":
        said = _text(messages[0].get("content"))
        return [{**messages[0], "content": f"{said}\n\n{instruction}"}, *messages[1:]]
    return [{"role": "system", "content": instruction}, *messages]


def _text(content: object) -> str:
    """Content as one string: these messages are written anew, and lists of parts with them."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, (list, tuple)) else ()
    return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, Mapping))


class BareParser:
    """As :class:`edge_runtime.guidance.tool_format.ToolCallParser`.

    Args:
        marks: what may come before the calls.
    """

    def __init__(self, marks: tuple[str, ...] = ()) -> None:
        self._marks = marks
        self._calls = CallsSoFar(long_id)
        self._reader: CallReader | None = None
        self._held = ""  # blanks, separators and marks, until it is known what follows them
        self._is_text = False

    def feed(self, text: str) -> list[Part]:
        """As :meth:`ToolCallParser.feed`."""
        parts: list[Part] = []
        while text:
            if self._is_text:
                return [*parts, Content(text)]
            if self._reader is not None:
                found, text = self._calls.parts(self._reader, text)
                parts += self._with_held(found)
                continue
            text = self._read_between(text)
        return parts

    def finish(self) -> list[Part]:
        """As :meth:`ToolCallParser.finish`."""
        if self._reader is not None and not self._reader.was_told:
            return [Content(self._held + self._reader.raw)]
        held = "" if self._calls.count or self._is_text else self._held
        return [Content(held)] if held else []

    def _read_between(self, text: str) -> str:
        """Before the first call and between calls: whatever is no call makes the rest text."""
        self._held += text
        bare = self._held
        for mark in self._marks:
            bare = bare.replace(mark, "", 1)
        bare = bare.lstrip(" \t\r\n;," if self._calls.count else " \t\r\n")
        if bare.startswith("{"):
            self._held = self._held[: -len(bare)]
            self._reader = CallReader("arguments", "parameters")
            return bare
        if bare and not any(mark.startswith(bare) for mark in self._marks):
            self._is_text, rest = True, self._held
            self._held = ""
            return rest.lstrip() if self._calls.count else rest
        return ""

    def _with_held(self, found: list[Part]) -> list[Part]:
        assert self._reader is not None
        if self._reader.state is CallState.MALFORMED:
            self._is_text = True
            found = [Content(self._held), *found] if self._held else found
        if self._reader.state is not CallState.OPEN:
            self._reader, self._held = None, ""
        return found
