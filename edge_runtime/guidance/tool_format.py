"""What each family of chat templates has to say about tools, and what their formats share.

A format gives the grammar of an answer that may call, reads calls back out of the text, and adapts
a conversation where the template cannot. Knows no family: each is a module of its own, and
:mod:`edge_runtime.guidance.tool_families` chooses.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from edge_runtime.guidance.answer_parts import CallArguments, CallOpened, Content, Part
from edge_runtime.guidance.call_object import CallReader, CallState
from edge_runtime.guidance.grammar import literal
from edge_runtime.guidance.tools import MAX_PARALLEL_CALLS, ToolUse

Term = Callable[[str], str]
"""Writes a mark as a grammar's term: as a token where it is a special one, else as a string."""


@dataclass(frozen=True)
class ToolPrompt:
    """A conversation ready for its template, and the tools that the template is to describe."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]


class ToolCallParser(Protocol):
    """Takes an answer apart while its text comes. One object an answer."""

    def feed(self, text: str) -> list[Part]:
        """The parts that this text makes certain."""

    def finish(self) -> list[Part]:
        """What was held back, at the end; what looked like a call and is none becomes content."""


class ToolFormat(Protocol):
    """How one family of models calls tools."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Marks that may be special tokens, and must then appear in the text by name."""

    def rules(self, use: ToolUse, term: Term) -> str:
        """Grammar rules that define ``answer``; ``TEXT``, any text, is defined elsewhere.

        Arguments of the i-th callable tool are the grammar ``@args{i}``.
        """

    def parser(self) -> ToolCallParser:
        """A fresh parser."""

    def prompt(self, messages: Sequence[Mapping[str, Any]], use: ToolUse | None) -> ToolPrompt:
        """The conversation in the form that the template reads; ``use`` is None without tools."""


def call_rule(use: ToolUse, *, arguments_key: str) -> str:
    """The rule ``object``: one call as a JSON object, spaced as Python's and most templates' are."""
    prefixes = [f'{{"name": "{tool.name}", "{arguments_key}": ' for tool in use.callable]
    alternatives = " | ".join(
        f'{literal(prefix)} @args{i} "}}"' for i, prefix in enumerate(prefixes)
    )
    return f"object: {alternatives}\n"


def further_calls(use: ToolUse, rule: str) -> str:
    """As many more of a rule as an answer may have calls after its first; a term, or nothing."""
    return f"({rule}){{0,{MAX_PARALLEL_CALLS - 1}}}" if use.parallel else ""


class CallsSoFar:
    """Numbers and names the calls of one answer.

    Args:
        new_id: makes an id that no other call has.
    """

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self.count = 0

    def open(self, name: str) -> CallOpened:
        """A call begins."""
        self.count += 1
        return CallOpened(self.count - 1, self._new_id(), name)

    def parts(self, reader: CallReader, text: str) -> tuple[list[Part], str]:
        """What a text adds to the call being read, and what of it comes after the call."""
        piece, rest = reader.feed(text)
        parts: list[Part] = []
        if piece.name is not None:
            parts.append(self.open(piece.name))
        if piece.arguments:
            parts.append(CallArguments(self.count - 1, piece.arguments))
        if reader.state is CallState.MALFORMED:
            parts.append(Content(reader.raw))
        return parts, rest


def long_id() -> str:
    """An id as OpenAI writes them."""
    return f"call_{secrets.token_hex(12)}"


_ALPHANUMERIC = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def short_id() -> str:
    """Nine letters and digits: the only ids that Mistral's templates take."""
    return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))
