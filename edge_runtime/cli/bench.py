"""Measure a model here: speed, start-up and memory."""

from __future__ import annotations

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    from edge_tools.bench import add_arguments
    from edge_tools.command import add_common_arguments

    add_common_arguments(parser)
    add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Do what :mod:`edge_tools.bench` does."""
    from edge_tools.bench import show

    show(arguments)
    return 0
