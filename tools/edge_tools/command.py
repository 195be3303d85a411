"""What the tools' command lines share: finding the model, saying how far, failing in one line.

Data goes to standard output, everything else to standard error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from edge_runtime.errors import EdgeRuntimeError, UsageError
from edge_runtime.store.names import RECIPES
from edge_runtime.store.progress import Event, Notice


def parser(module: str, description: str | None) -> argparse.ArgumentParser:
    """An argument parser with what every tool takes: MODEL, --quant, --threads, --json."""
    made = argparse.ArgumentParser(
        prog=f"python -m edge_tools.{module}",
        description=(description or "").split("\n\n", 1)[0],
    )
    add_common_arguments(made)
    return made


def add_common_arguments(made: argparse.ArgumentParser) -> None:
    """What every tool takes: MODEL, --quant, --threads, --json."""
    made.add_argument("model", metavar="MODEL", help="a bundle, a .gguf file, or a model's name")
    made.add_argument("--quant", choices=RECIPES, help="the recipe; exported on first use")
    made.add_argument("--threads", type=int, metavar="N", help="threads of the engine and the peer")
    made.add_argument("--json", action="store_true", help="print JSON instead of a table")


def say(text: str) -> None:
    """One line for the person who waits."""
    print(text, file=sys.stderr, flush=True)


def bundle_of(arguments: argparse.Namespace) -> Path:
    """The bundle that the arguments mean, exported if this is its first use."""
    from edge_runtime.store.resolve import ensure_bundle

    def report(event: Event) -> None:
        if isinstance(event, Notice):
            say(event.text)

    return ensure_bundle(arguments.model, quant=arguments.quant, report=report)


def source_of(model: str) -> Path:
    """The GGUF file that MODEL is, or was exported from.

    Raises:
        UsageError: it is a bundle, or its file is not in the store.
    """
    from edge_runtime.store.resolve import SourceFile, StoredName, resolve

    found = resolve(model)
    if isinstance(found, SourceFile):
        return found.path
    if isinstance(found, StoredName) and found.source is not None:
        return found.source
    raise UsageError(
        f"{model} is a bundle without its source", hint="name the .gguf file it was made from"
    )


def run(main: Callable[[], None]) -> None:
    """Run a tool; an error of this project becomes its one line, its hint and its exit code."""
    try:
        main()
    except EdgeRuntimeError as error:
        say(f"error: {error}")
        if error.hint:
            say(f"\nhint: {error.hint}")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
