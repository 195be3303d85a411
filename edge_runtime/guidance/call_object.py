"""Reads one call, a JSON object with a name and arguments, while its text comes in pieces.

Arguments are passed on as they are written once the name is known. Knows no tags around a call.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum, auto

_BLANKS = " \t\r\n"
_MAX_HELD_CHARACTERS = 65_536


class CallState(Enum):
    """How far a call was read."""

    OPEN = auto()
    DONE = auto()
    MALFORMED = auto()  # it is no call: :attr:`CallReader.raw` is all that there is of it


@dataclass(frozen=True)
class CallPiece:
    """What a piece of text added: the name at most once, and arguments."""

    name: str | None
    arguments: str


class CallReader:
    """One call.

    Args:
        argument_keys: under which the arguments may stand.
    """

    def __init__(self, *argument_keys: str) -> None:
        self._keys = argument_keys
        self.state = CallState.OPEN
        self.raw = ""
        """All that was read; the arguments' text is no longer added once the name was told."""
        self._depth = 0
        self._string: list[str] | None = None  # of the string being read, with its quotes
        self._escaped = False
        self._last_string = ""
        self._key = ""
        self._expects_value = False
        self._name: str | None = None
        self._told = False
        self._in_arguments = False
        self._arguments: list[str] = []
        self._has_arguments = False

    @property
    def was_told(self) -> bool:
        """Whether the name was passed on: from there it is a call, however it ends."""
        return self._told

    def feed(self, text: str) -> tuple[CallPiece, str]:
        """What the text adds, and what of it comes after the call."""
        for position, character in enumerate(text):
            if not self._told:
                self.raw += character
            self._read(character)
            if len(self.raw) > _MAX_HELD_CHARACTERS:
                self.state = CallState.MALFORMED
            if self.state is not CallState.OPEN:
                return self._piece(), text[position + 1 :]
        return self._piece(), ""

    def _piece(self) -> CallPiece:
        if self._name is None or self.state is CallState.MALFORMED:
            return CallPiece(None, "")
        if self.state is CallState.DONE and not self._has_arguments:
            self._arguments = ["{}"]
        name = None if self._told else self._name
        self._told = True
        arguments, self._arguments = "".join(self._arguments), []
        return CallPiece(name, arguments)

    def _read(self, character: str) -> None:
        if self._in_arguments:
            self._arguments.append(character)
        if self._string is not None:
            self._read_in_string(character)
        elif character == '"':
            self._check_value_kind(character)
            self._string = [character]
        elif character in "{[":
            self._open(character)
        elif character in "}]":
            self._close()
        elif self._depth == 0 and character not in _BLANKS:
            self._fail()
        elif self._depth == 1:
            self._read_between(character)

    def _read_in_string(self, character: str) -> None:
        assert self._string is not None
        self._string.append(character)
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            if self._depth == 1:
                self._end_string("".join(self._string))
            self._string = None

    def _end_string(self, quoted: str) -> None:
        try:
            value = json.loads(quoted, strict=False)
        except ValueError:
            self._fail()
            return
        if not self._expects_value:
            self._key = value
        elif self._key == "name" and self._name is None and value:
            self._name = value

    def _check_value_kind(self, character: str) -> None:
        """Arguments that are no object are no call's."""
        if self._depth == 0 or (
            self._depth == 1
            and self._expects_value
            and self._key in self._keys
            and character != "{"
        ):
            self._fail()

    def _open(self, character: str) -> None:
        if self._depth == 0 and character != "{":
            self._fail()
            return
        if self._depth == 1:
            self._check_value_kind(character)
            if self._expects_value and self._key in self._keys and not self._has_arguments:
                self._in_arguments = self._has_arguments = True
                self._arguments.append(character)
        self._depth += 1

    def _close(self) -> None:
        self._depth -= 1
        if self._depth == 1:
            self._in_arguments = False
        elif self._depth == 0 and self._name is not None:
            self.state = CallState.DONE
        elif self._depth <= 0:
            self._fail()

    def _read_between(self, character: str) -> None:
        if character == ":":
            self._expects_value = True
        elif character == ",":
            self._expects_value = False
        elif self._expects_value and character not in _BLANKS:
            self._check_value_kind(character)

    def _fail(self) -> None:
        # Once it was told there is no way back: what is left of it is read to its end.
        if not self._told:
            self.state = CallState.MALFORMED
