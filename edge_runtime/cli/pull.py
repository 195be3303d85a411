"""Bring a model into the local store: a catalog name, or hf:ORG/REPO[:FILE]."""

from __future__ import annotations

import argparse

from edge_runtime.cli.reporting import Reporter
from edge_runtime.store.pull import pull


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "model", metavar="MODEL", help="a name in the catalog, or hf:ORG/REPO[:FILE]"
    )


def run(arguments: argparse.Namespace) -> int:
    """Pull; the path of what came goes to stdout."""
    with Reporter() as report:
        path = pull(arguments.model, report=report)
    print(path)
    return 0
