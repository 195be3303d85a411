"""``python -m edge_runtime`` is ``edge-runtime``."""

from __future__ import annotations

from edge_runtime.cli.entry import run_program

if __name__ == "__main__":
    run_program()
