"""Names that a mistyped one may have been meant for. Knows no kind of name."""

from __future__ import annotations

from collections.abc import Iterable


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """The known names that ``name`` may have been meant for, likeliest first, at most three."""
    import difflib  # only an error needs it

    by_lower = {candidate.lower(): candidate for candidate in known}
    wanted = name.lower()
    close = difflib.get_close_matches(wanted, by_lower, n=3, cutoff=0.6)
    if len(wanted) >= 3:
        close += [candidate for candidate in by_lower if candidate.startswith(wanted)]
    return [by_lower[candidate] for candidate in dict.fromkeys(close)][:3]
