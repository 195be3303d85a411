"""Show what a saved prompt belongs to, and check that it is whole."""

from __future__ import annotations

import argparse
import json
from typing import Any

from edge_runtime.cli.tables import pairs
from edge_runtime.engine.prefix_file import PrefixFile
from edge_runtime.store.home import Home
from edge_runtime.store.progress import format_bytes
from edge_runtime.store.prompts import find_prompt
from edge_runtime.typed_data import encode


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("prompt", metavar="FILE", help="a file, or a name in the store")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the header once every checksum has been found right."""
    file = PrefixFile.open(find_prompt(Home.find(), arguments.prompt))
    file.verify()
    header: dict[str, Any] = encode(file.header)
    del header["checksums"]
    if arguments.json:
        plain = {"path": str(file.path), "size_bytes": file.size_bytes, **header}
        print(json.dumps(plain | {"token_ids": list(file.token_ids)}, ensure_ascii=False))
        return 0
    key = header.pop("key")
    facts = header | {"size": format_bytes(file.size_bytes)} | key
    print(f"{file.path}\n\n{pairs([(name, _line(value)) for name, value in facts.items()])}")
    return 0


def _line(value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= 72 else f"{text[:69]}..."
