"""What long work tells its caller: lines to say, and how far along it is.

Knows no terminal; edge_runtime.cli.reporting draws these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Notice:
    """One line that a person should see."""

    text: str


@dataclass(frozen=True)
class Progress:
    """How far a stage of the work is, in bytes; ``total_bytes`` is 0 where it is not known."""

    stage: str
    done_bytes: int
    total_bytes: int


Event = Notice | Progress
Report = Callable[[Event], None]


def silent(event: Event) -> None:
    """A report that nobody reads."""


def format_bytes(count: int) -> str:
    """A size for people, in powers of a thousand, as download pages give it: ``98.4 MB``."""
    if count < 1000:
        return f"{count} B"
    size = float(count)
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"
