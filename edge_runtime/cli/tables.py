"""Plain tables for stdout: aligned columns that a pipe gets whole, whatever the terminal's width.

Knows nothing of what stands in them.
"""

from __future__ import annotations

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: str = "") -> str:
    """Lay out rows under a header, two spaces between columns.

    Args:
        header: the columns' names.
        rows: as many cells each.
        right: names of the columns to align right, separated by spaces.

    Returns:
        The lines, without a newline at the end.
    """
    lines = [[_shown(cell) for cell in line] for line in (header, *rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    aligned = [name in right.split() for name in header]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, aligned, strict=True)
        ).rstrip()
        for line in lines
    )


def pairs(items: Sequence[tuple[str, str]]) -> str:
    """Lay out names and values, one pair a line."""
    width = max(len(name) for name, _ in items)
    return "\n".join(f"{_shown(name):<{width}}  {_shown(value)}".rstrip() for name, value in items)


def _shown(cell: str) -> str:
    """The cell with control characters made visible: files that are shown may come from anyone."""
    return cell if cell.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in cell)
