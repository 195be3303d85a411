"""Show what an export cost in quality: KL and perplexity against its source, on a text."""

from __future__ import annotations

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    from edge_tools.command import add_common_arguments
    from edge_tools.evaluate import add_arguments

    add_common_arguments(parser)
    add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Do what :mod:`edge_tools.evaluate` does."""
    from edge_tools.evaluate import show

    show(arguments)
    return 0
