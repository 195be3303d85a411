"""A conversation as clients send it, in the form that a chat template can read.

Adapted as the model's makers advise, and only where a template needs it:

- Content given as a list of text parts. A template that prints such a list as it prints a string
  gets the list; any other gets the texts joined by newlines. One that reads only lists gets a
  plain string as a list of one part.
- A system message where the template has no such role (it refuses it, or prints nothing of it, and
  renders the rest): its text goes before the first user message, two newlines between, as Gemma's
  makers advise and their later templates do.
- ``content`` of None (an assistant that only calls tools) becomes the empty string, no
  ``tool_calls`` is left out, and a call's ``arguments`` given as the text of a JSON object becomes
  the object.

Knows no Jinja: which form a template reads, :mod:`edge_runtime.text.chat_template` finds out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from typing import Any

from edge_runtime.errors import InvalidParameterError


class Content(Enum):
    """What a template can read as a message's content."""

    STRING = "a string"
    PARTS = "a list of parts"
    EITHER = "a string or a list of parts"


def merge_system_message(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put the system message's text before that of the user's, which follows it."""
    system, user, *others = messages
    before, after = system["content"], user["content"]
    if isinstance(before, str) and isinstance(after, str):
        return [{**user, "content": f"{before}\n\n{after}"}, *others]
    parts = [*as_parts(before), *as_parts("\n\n"), *as_parts(after)]
    return [{**user, "content": parts}, *others]


def adapted_message(message: Mapping[str, Any], where: str, reads: Content) -> dict[str, Any]:
    """A copy of a message, checked, with its content and calls in the form a template reads.

    Args:
        message: as a client sends it.
        where: its place in the conversation, for errors.
        reads: what the template can read.

    Raises:
        InvalidParameterError: it is no message, or holds what is not text.
    """
    if not isinstance(message, Mapping):
        raise InvalidParameterError(f"{where} is not a message with role and content")
    if not isinstance(message.get("role"), str):
        raise InvalidParameterError(f"{where} has the role {message.get('role')!r}, not a string")
    content = message.get("content")
    if content is None:
        content = ""
    elif isinstance(content, (list, tuple)):
        content = [_checked_part(part, f"{where}.content[{i}]") for i, part in enumerate(content)]
    elif not isinstance(content, str):
        raise InvalidParameterError(
            f"{where}.content is {type(content).__name__}, not a string or a list of text parts"
        )
    adapted = {**message, "content": as_read(reads, content)}
    calls = adapted.pop("tool_calls", None)
    if calls:
        adapted["tool_calls"] = [_with_parsed_arguments(call) for call in calls]
    return adapted


def _checked_part(part: object, where: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if not isinstance(part, Mapping) or kind != "text" or not isinstance(part.get("text"), str):
        raise InvalidParameterError(
            f"{where} is of type {kind!r}",
            hint='this runtime reads text only: {"type": "text", "text": "..."}',
        )
    return dict(part)


def as_read(reads: Content, content: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Content, string or parts, in the form that a template reads."""
    if reads is Content.PARTS:
        return as_parts(content)
    if reads is Content.STRING and not isinstance(content, str):
        return "\n".join(part["text"] for part in content)
    return content


def as_parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Content as a list of text parts."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _with_parsed_arguments(call: Any) -> Any:
    """A tool call whose arguments are an object: the API's text of it would be quoted twice."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call  # a model's own malformed call, quoted back as it was
    if not isinstance(arguments, dict):
        return call
    return {**call, "function": {**function, "arguments": arguments}}
