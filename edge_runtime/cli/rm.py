"""Take models out of the local store: their downloads and their bundles."""

from __future__ import annotations

import argparse

from edge_runtime.cli.reporting import Reporter
from edge_runtime.store.contents import remove
from edge_runtime.store.progress import format_bytes


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "names",
        metavar="NAME",
        nargs="+",
        help="as `list` shows it; NAME:RECIPE removes one bundle and leaves the rest",
    )


def run(arguments: argparse.Namespace) -> int:
    """Remove each, saying what and how much; the first that is not there ends it."""
    with Reporter() as report:
        for name in arguments.names:
            for model in remove(name, report=report):
                what = f"{model.kind.value} {model.recipe or ''}".rstrip()
                print(f"removed {model.name} ({what}, {format_bytes(model.size_bytes)})")
    return 0
