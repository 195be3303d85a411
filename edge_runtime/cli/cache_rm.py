"""Take prompts out of the store, or the one that a bundle brings along out of the bundle."""

from __future__ import annotations

import argparse

from edge_runtime.cli.reporting import Reporter
from edge_runtime.cli.session import found_bundle
from edge_runtime.errors import UsageError
from edge_runtime.store.home import Home
from edge_runtime.store.progress import format_bytes
from edge_runtime.store.prompts import remove_prompt
from edge_runtime.warm_prompt import drop_warm_prompt


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("names", metavar="NAME", nargs="*", help="as `cache list` shows it")
    parser.add_argument(
        "--from-bundle", dest="model", metavar="MODEL", help="a bundle's own, of this model"
    )


def run(arguments: argparse.Namespace) -> int:
    """Remove each, saying what; the first that is not there ends it."""
    if not arguments.names and arguments.model is None:
        raise UsageError("say what to remove", hint="a NAME, or --from-bundle MODEL")
    home = Home.find()
    for name in arguments.names:
        print(f"removed {name} ({format_bytes(remove_prompt(home, name))})")
    if arguments.model is not None:
        arguments.quant = None
        bundle = found_bundle(arguments)
        with (
            Reporter() as report,
            home.exclusive("warm-prompt", doing="changing a bundle", report=report),
        ):
            if not drop_warm_prompt(bundle):
                raise UsageError(f"{bundle} has no prompt of its own")
        print(f"removed the prompt of {bundle}")
    return 0
