"""``python -m edge_runtime`` is ``edge-runtime``."""

from __future__ import annotations

from edge_runtime.cli.main import entry_point

if __name__ == "__main__":
    entry_point()
