"""What every command that runs a model shares: the options of running it, and opening its engine.

Finds the bundle (exporting it on first use), loads it, and says on stderr what gave way to memory.
Knows no prompt and no sampling.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edge_runtime.bundle import CACHE_TYPES
from edge_runtime.cli.device import (
    add_device_arguments,
    device_defaults,
    provider_steps_shown,
)
from edge_runtime.cli.reporting import Reporter
from edge_runtime.engine.memory_plan import parse_bytes
from edge_runtime.engine.options import Speculation
from edge_runtime.file_hash import RememberedHashes
from edge_runtime.providers.memory_advice import keep_heap_small
from edge_runtime.store.home import Home
from edge_runtime.store.names import RECIPES
from edge_runtime.store.progress import format_bytes
from edge_runtime.store.resolve import ensure_bundle

if TYPE_CHECKING:
    from edge_runtime.engine.driver import EngineDriver
    from edge_runtime.engine.engine import Engine
    from edge_runtime.engine.options import MemoryLimit

_NO_CAP = "none"


@dataclass(frozen=True)
class OpenedEngine:
    """A loaded engine, and what loading took in seconds."""

    engine: Engine
    load_s: float
    system: str | None = None
    """The system message of the saved prompt that it was started with."""


@dataclass(frozen=True)
class Session:
    """A loaded engine in a thread of its own, and what loading took in seconds."""

    engine: Engine
    driver: EngineDriver
    load_s: float
    system: str | None = None
    """The system message of the saved prompt that it was started with."""


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """Add MODEL."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a bundle directory, a .gguf file, or a name in the store; NAME:int4 names a recipe",
    )


def add_running_arguments(
    parser: argparse.ArgumentParser, *, speculation: Speculation = Speculation.OFF
) -> argparse._ArgumentGroup:
    """Add how a model runs; gives the group, for what a command adds of its own.

    Args:
        parser: the command's.
        speculation: what the command does where nothing is said.
    """
    running = parser.add_argument_group("running")
    running.add_argument("--context", type=int, metavar="N", help="tokens that a text may hold")
    running.add_argument(
        "--memory-cap",
        metavar="SIZE",
        help="most memory to hold, such as 300M; chunk, slots, cache type and context give way to it "
        "(default: what machine and container leave; none keeps no account)",
    )
    running.add_argument(
        "--cache-type",
        choices=CACHE_TYPES,
        default="float32",
        help="how to keep what was read: int8 takes a quarter of the memory; default: float32",
    )
    add_device_arguments(running)
    running.add_argument("--threads", type=int, metavar="N", help="default: what the CPU gives")
    running.add_argument("--quant", choices=RECIPES, help="the recipe of a .gguf file's export")
    running.add_argument(
        "--speculation",
        choices=[way.value for way in Speculation],
        default=speculation.value,
        help="prompt-lookup drafts what the text has said before, which is faster where an answer "
        f"quotes (default: {speculation.value})",
    )
    return running


def add_prompt_cache_argument(running: argparse._ArgumentGroup) -> None:
    """Add what a command that answers prompts may start warm with."""
    running.add_argument(
        "--prompt-cache",
        metavar="FILE",
        help="start with a saved prompt: a file, or a name in the store (edge-runtime cache save)",
    )


@contextmanager
def open_engine(
    arguments: argparse.Namespace,
    *,
    slots: int | None = 1,
    chunk_size: int | None = None,
    at_once: int = 1,
) -> Iterator[OpenedEngine]:
    """Find the bundle, load it, and close it at the end.

    Args:
        arguments: those of `add_model_argument` and `add_running_arguments`.
        slots: sequences that run at the same time; None is the target's choice, or one.
        chunk_size: most prompt tokens in a step; None is the target's choice, or the engine's.
        at_once: requests that will be handed over at the same time.

    Raises:
        EdgeRuntimeError: as `ensure_bundle` and the engine's loading. A cap that is no size is
            refused before anything slow is done.
    """
    cap_bytes = asked_cap(arguments)
    device = device_defaults(arguments)
    saved = _saved_prompt(arguments)
    bundle = found_bundle(arguments)
    from edge_runtime.engine.engine import Engine, EngineOptions

    options = EngineOptions(
        context_length=arguments.context,
        speculation=arguments.speculation,
        providers=device.providers,
        cache_type=arguments.cache_type,
        **device.fill(
            threads=arguments.threads,
            slots=slots,
            chunk_size=chunk_size,
            memory_cap_bytes=cap_bytes,
        ),
        memory_limit=default_limit(arguments),
    )
    options = replace(options, max_waiting=max(options.max_waiting, at_once))
    hashes = RememberedHashes(Home.find().hashes)
    started_s = time.perf_counter()
    with provider_steps_shown():
        loaded = Engine.load(bundle, options, hash_file=hashes)
    with loaded as engine:
        system = None if saved is None else engine.load_prefix(saved).system
        load_s = time.perf_counter() - started_s
        for notice in engine.notices:
            print(notice, file=sys.stderr, flush=True)
        if engine.memory_plan is not None and engine.memory_plan.steps:
            steps = ", ".join(engine.memory_plan.steps)
            cap = format_bytes(engine.memory_plan.cap)
            print(
                f"to stay under {cap} ({engine.memory_plan.cap_source}): {steps}",
                file=sys.stderr,
                flush=True,
            )
        yield OpenedEngine(engine, load_s, system)


@contextmanager
def open_session(
    arguments: argparse.Namespace, *, slots: int = 1, at_once: int = 1
) -> Iterator[Session]:
    """As `open_engine`, with the engine in a thread of its own.

    Raises:
        EdgeRuntimeError: as `open_engine`.
    """
    with open_engine(arguments, slots=slots, at_once=at_once) as opened:
        from edge_runtime.engine.driver import EngineDriver

        with EngineDriver(opened.engine) as driver:
            yield Session(opened.engine, driver, opened.load_s, opened.system)


def asked_cap(arguments: argparse.Namespace) -> int | None:
    """The bytes of --memory-cap; None without one.

    Raises:
        InvalidParameterError: it is no size.
    """
    text = arguments.memory_cap
    return None if text is None or text.lower() == _NO_CAP else parse_bytes(text)


def default_limit(arguments: argparse.Namespace) -> MemoryLimit | None:
    """What machine and container leave, where --memory-cap says nothing."""
    from edge_runtime.engine.memory_limit import find_memory_limit

    return find_memory_limit() if arguments.memory_cap is None else None


def _saved_prompt(arguments: argparse.Namespace) -> Path | None:
    """The file of --prompt-cache, found before anything slow is done."""
    text = getattr(arguments, "prompt_cache", None)
    if text is None:
        return None
    from edge_runtime.part_files import sweep_abandoned
    from edge_runtime.store.prompts import find_prompt

    path = find_prompt(Home.find(), text)
    say_what_was_swept(sweep_abandoned(path))
    return path


def say_what_was_swept(left: list[Path]) -> None:
    """Tell of what killed saves had left, and that it is gone."""
    for path in left:
        print(f"deleted what a killed save had left: {path}", file=sys.stderr, flush=True)


def found_bundle(arguments: argparse.Namespace) -> Path:
    """The bundle of MODEL, exported on first use."""
    keep_heap_small()
    with Reporter() as report:
        return ensure_bundle(
            arguments.model, quant=arguments.quant, report=report, home=Home.find()
        )
