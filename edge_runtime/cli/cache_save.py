"""Evaluate a prompt, such as a long system message, and save its keys and values."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from edge_runtime.cli.reporting import Reporter
from edge_runtime.cli.session import (
    add_model_argument,
    add_running_arguments,
    found_bundle,
    open_engine,
    say_what_was_swept,
)
from edge_runtime.cli.standard_input import require_valid_unicode
from edge_runtime.errors import UsageError
from edge_runtime.store.home import Home, make_folder
from edge_runtime.store.progress import format_bytes
from edge_runtime.store.prompts import prompt_file, sweep_prompts

if TYPE_CHECKING:
    from edge_runtime.engine.engine import Engine


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.epilog = "Then: edge-runtime run MODEL --prompt-cache FILE-OR-NAME PROMPT"
    add_model_argument(parser)
    parser.add_argument("file", metavar="FILE", nargs="?", type=Path, help="where to save it")
    parser.add_argument("--name", metavar="NAME", help="save it in the local store")
    parser.add_argument(
        "--into-bundle", action="store_true", help="have the bundle itself bring it along"
    )
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("--system", metavar="TEXT", help="a system message")
    prompt.add_argument("--prompt-file", metavar="FILE", type=Path, help="read it from a file")
    parser.add_argument(
        "--raw", action="store_true", help="no chat template: the text itself is the prompt"
    )
    add_running_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Save it; one line on stderr says what, the path goes to stdout."""
    places = (arguments.file is not None, arguments.name is not None, arguments.into_bundle)
    if sum(places) != 1:
        raise UsageError(
            "say where to save it, and one place only", hint="give FILE, --name or --into-bundle"
        )
    text = _text(arguments)
    home = Home.find()
    named = None if arguments.name is None else prompt_file(home, arguments.name)
    if arguments.into_bundle:
        # Resolved first, so that the engine opens this very directory.
        bundle = found_bundle(arguments)
        arguments.model, arguments.quant = str(bundle), None
    with open_engine(arguments) as opened:
        engine = opened.engine
        system = None if arguments.raw else text
        ids = engine.encode_prompt(text) if arguments.raw else engine.chat_prefix(text)
        if arguments.into_bundle:
            path = _into_bundle(engine, ids, system, bundle, home)
        else:
            if named is not None:
                make_folder(named.parent)
                say_what_was_swept(sweep_prompts(home))
            path = named or arguments.file
            engine.save_prefix(ids, path, system=system)
    size = format_bytes(path.stat().st_size)
    print(f"saved {len(ids)} tokens ({size})", file=sys.stderr)
    print(path)
    return 0


def _text(arguments: argparse.Namespace) -> str:
    if arguments.prompt_file is not None:
        try:
            text = str(arguments.prompt_file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as exc:
            reason = getattr(exc, "strerror", None) or exc
            raise UsageError(f"{arguments.prompt_file} cannot be read: {reason}") from exc
        # As when it is piped: the newline at the end is the editor's.
        text = text.removeprefix("\ufeff").removesuffix("\n").removesuffix("\r")
    else:
        text = arguments.system or ""
    require_valid_unicode(text, "the prompt")
    if not text.strip():
        raise UsageError("there is no prompt to save", hint="give --system or --prompt-file")
    return text


def _into_bundle(
    engine: Engine, ids: list[int], system: str | None, bundle: Path, home: Home
) -> Path:
    from edge_runtime.warm_prompt import set_warm_prompt

    with (
        Reporter() as report,
        home.exclusive("warm-prompt", doing="changing a bundle", report=report),
    ):
        manifest = set_warm_prompt(
            bundle, lambda path: engine.save_prefix(ids, path, system=system)
        )
    assert manifest.warm_prompt is not None
    return bundle / manifest.warm_prompt
