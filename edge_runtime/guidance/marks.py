"""Finds a mark in a text that comes in pieces, and never passes on what may be a part of one.

Knows no format: a mark is any string.
"""

from __future__ import annotations


def ends_like(text: str, mark: str) -> int:
    """How many characters at the end of ``text`` may begin ``mark``, which is not whole in it."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if mark.startswith(text[-length:]):
            return length
    return 0


def ends_blank(text: str) -> int:
    """How many characters at the end of ``text`` are blanks."""
    return len(text) - len(text.rstrip())


class MarkFinder:
    """Passes on a text up to a mark.

    Blanks before the mark are dropped with it, so they are held back too; where no mark follows
    them they are passed on.

    Args:
        mark: not empty.
    """

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._held = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """What of the text is surely before the mark, and what follows it once it was met."""
        text = self._held + text
        before, found, after = text.partition(self._mark)
        if found:
            self._held = ""
            return before.rstrip(), after
        keep = len(text) - ends_like(text, self._mark)
        keep -= ends_blank(text[:keep])
        self._held = text[keep:]
        return text[:keep], None

    def flush(self) -> str:
        """What was held back, at the end."""
        held, self._held = self._held, ""
        return held
