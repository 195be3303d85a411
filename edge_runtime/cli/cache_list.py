"""Show the prompts in the store."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from edge_runtime.cli.session import say_what_was_swept
from edge_runtime.cli.tables import table
from edge_runtime.engine.prefix_file import PrefixFile
from edge_runtime.errors import PrefixFileError
from edge_runtime.store.home import Home
from edge_runtime.store.progress import format_bytes
from edge_runtime.store.prompts import list_prompts, sweep_prompts


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--json", action="store_true", help="print a JSON list, sizes in bytes")


def run(arguments: argparse.Namespace) -> int:
    """Print the table, or the JSON; one that cannot be read is listed with the reason."""
    home = Home.find()
    say_what_was_swept(sweep_prompts(home))
    entries = [_entry(path) for path in list_prompts(home)]
    if arguments.json:
        print(json.dumps(entries, indent=2, ensure_ascii=False))
    elif not entries:
        print("no prompt is saved; edge-runtime cache save MODEL --name NAME", file=sys.stderr)
    else:
        rows = [
            [
                entry["name"],
                entry.get("model", "-"),
                str(entry.get("tokens", "-")),
                format_bytes(entry["size_bytes"]),
                time.strftime("%Y-%m-%d %H:%M", time.localtime(entry["modified_s"])),
            ]
            for entry in entries
        ]
        headings = ["NAME", "MODEL", "TOKENS", "SIZE", "MODIFIED"]
        print(table(headings, rows, right="TOKENS SIZE"))
        for entry in entries:
            if "error" in entry:
                print(entry["error"], file=sys.stderr)
    return 0


def _entry(path: Path) -> dict[str, Any]:
    status = path.lstat()
    entry: dict[str, Any] = {"name": path.stem, "path": str(path)}
    entry |= {"size_bytes": status.st_size, "modified_s": status.st_mtime}
    try:
        header = PrefixFile.open(path).header
    except PrefixFileError as exc:
        return entry | {"error": exc.message}
    return entry | {"model": header.model, "tokens": header.tokens}
