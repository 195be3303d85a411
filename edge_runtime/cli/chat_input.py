"""What a user types in a chat, one message at a time.

A backslash at a line's end continues it on the next; a message that starts with three quotes goes
on to the next three. On a terminal the lines can be edited; piped lines come one a turn. Knows no
command and no model.
"""

from __future__ import annotations

import contextlib
import sys

from edge_runtime.cli.standard_input import decode_utf8

_PROMPT, _MORE = ">>> ", "... "
_QUOTES = '"""'


class Typed:
    """Messages from a terminal."""

    interactive = True

    def __init__(self) -> None:
        # Importing it gives input() editing and a history; some builds of Python have none.
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401

    def line(self, prompt: str) -> str:
        """One line. Raises EOFError at Ctrl-D and KeyboardInterrupt at Ctrl-C."""
        return input(prompt)


class Piped:
    """Messages from a pipe or a file."""

    interactive = False

    def line(self, prompt: str) -> str:
        """One line. Raises EOFError at the end and UsageError where it is not UTF-8."""
        data = sys.stdin.buffer.readline() if sys.stdin is not None else b""
        if not data:
            raise EOFError
        return decode_utf8(data).removesuffix("\n").removesuffix("\r")


def read_message(source: Typed | Piped) -> str:
    """The next message, put together from its lines.

    Raises:
        EOFError: there is none; a last message that was not closed still counts.
        KeyboardInterrupt: Ctrl-C.
    """
    text = source.line(_PROMPT)
    if text.lstrip().startswith(_QUOTES):
        return _read_block(source, text.lstrip().removeprefix(_QUOTES))
    while text.endswith("\\"):
        try:
            text = text[:-1] + "\n" + source.line(_MORE)
        except EOFError:
            return text[:-1]
    return text


def _read_block(source: Typed | Piped, text: str) -> str:
    while not text.rstrip().endswith(_QUOTES):
        try:
            text += "\n" + source.line(_MORE)
        except EOFError:
            return text.strip("\n")
    return text.rstrip().removesuffix(_QUOTES).strip("\n")
