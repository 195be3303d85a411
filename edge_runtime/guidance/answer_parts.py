"""What an answer consists of, as it comes: content, reasoning, and calls of tools.

Plain frozen values between the parsers and whoever writes a reply. Knows no text and no format.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Content:
    """A piece of what is said to the user."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """A piece of what the model says to itself."""

    text: str


@dataclass(frozen=True)
class CallOpened:
    """A call begins. ``index`` counts the answer's calls from 0; ``id`` names it for its result."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class CallArguments:
    """A piece of the JSON text of a call's arguments."""

    index: int
    text: str


Part = Content | Reasoning | CallOpened | CallArguments


@dataclass(frozen=True)
class ToolCall:
    """A whole call. ``arguments`` is the JSON text of an object, unless the answer was cut."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Message:
    """A whole answer in its parts."""

    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]


def message_of(parts: list[Part]) -> Message:
    """The parts of one answer put together."""
    calls: dict[int, ToolCall] = {}
    for part in parts:
        if isinstance(part, CallOpened):
            calls[part.index] = ToolCall(part.id, part.name, "")
        elif isinstance(part, CallArguments):
            call = calls[part.index]
            calls[part.index] = ToolCall(call.id, call.name, call.arguments + part.text)
    return Message(
        content="".join(part.text for part in parts if isinstance(part, Content)),
        reasoning="".join(part.text for part in parts if isinstance(part, Reasoning)),
        tool_calls=tuple(calls[index] for index in sorted(calls)),
    )
