"""Prose to measure on: a file, or the English that every Python carries, its language reference.

That text is the help that ``pydoc`` shows, taken from the running interpreter when it is wanted, so
no copy lies in this project. Licence: Python Software Foundation License Version 2. It differs a
little between Python versions; :attr:`Prose.name` says which one it was. Knows no tokenizer.
"""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass
from pathlib import Path

from edge_runtime.errors import UsageError

# Long topics that are sentences more than tables, in the order in which they are read.
_TOPICS = (
    "types", "execmodel", "compound", "import", "assignment", "comparisons", "customization",
    "naming", "objects", "specialnames",
)  # fmt: skip


@dataclass(frozen=True)
class Prose:
    """A text, what to call it, and the sha256 of its UTF-8."""

    name: str
    licence: str
    sha256: str
    text: str


def python_reference() -> Prose:
    """About 200,000 characters of the Python language reference."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in _TOPICS if name in topics)
    return Prose(
        name=f"Python {platform.python_version()} language reference (pydoc_data.topics)",
        licence="PSF-2.0",
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        text=text,
    )


def prose_of(path: Path) -> Prose:
    """A text file of the caller's own.

    Raises:
        UsageError: it cannot be read, or is not UTF-8.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as exc:
        raise UsageError(f"{path} cannot be read as text: {exc}", hint="name a UTF-8 file") from exc
    return Prose(path.name, "unknown", hashlib.sha256(text.encode()).hexdigest(), text)
