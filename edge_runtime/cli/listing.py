"""Show what is in the local store."""

from __future__ import annotations

import argparse
import json
import sys
import time

from edge_runtime.cli.tables import table
from edge_runtime.store.catalog import load_catalog
from edge_runtime.store.contents import StoredModel, list_models
from edge_runtime.store.progress import format_bytes


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--json", action="store_true", help="print a JSON list, sizes in bytes")


def run(arguments: argparse.Namespace) -> int:
    """Print the table, or the JSON."""
    models = list_models()
    if arguments.json:
        print(json.dumps([_plain(model) for model in models], indent=2, ensure_ascii=False))
        return 0
    if not models:
        names = ", ".join(entry.name for entry in load_catalog().models)
        print(f"the store is empty; edge-runtime pull NAME ({names})", file=sys.stderr)
        return 0
    rows = [
        [m.name, m.kind.value, m.recipe or "-", format_bytes(m.size_bytes), _day(m.modified_s)]
        for m in models
    ]
    print(table(["NAME", "KIND", "RECIPE", "SIZE", "MODIFIED"], rows, right="SIZE"))
    return 0


def _plain(model: StoredModel) -> dict[str, object]:
    return {
        "name": model.name,
        "kind": model.kind.value,
        "recipe": model.recipe,
        "size_bytes": model.size_bytes,
        "modified_s": model.modified_s,
        "path": str(model.path),
    }


def _day(modified_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(modified_s))
