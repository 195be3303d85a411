"""Where the program begins: nothing is imported before Ctrl-C ends it without a traceback.

The interpreter's own start comes before any code of ours, and stays as it is.
"""

from __future__ import annotations


def run_program() -> None:
    """``edge-runtime``: the command line of :mod:`edge_runtime.cli.main`, and its exit code."""
    try:
        from edge_runtime.cli.main import entry_point

        entry_point()
    except KeyboardInterrupt:
        # Between two places that would have taken it: still importing, or done already.
        raise SystemExit(130) from None
