"""Measure what a model costs on this machine: speed, start-up and memory.

    python -m edge_tools.bench MODEL [--quant int4] [--threads N] [--rounds 3] [--json]

Every figure is the median of some rounds and is taken from outside, as a caller sees it. Knows the
engine only through its public names and the command line only as a process.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

from edge_runtime.bundle import CACHE_TYPES, CacheType, read_manifest
from edge_runtime.engine.engine import Engine, EngineOptions
from edge_runtime.errors import UsageError
from edge_tools.command import bundle_of, parser, run, say
from edge_tools.machine import this_machine
from edge_tools.process import CommandError, PeakMemory, first_byte_s, peak_memory
from edge_tools.prose import python_reference
from edge_tools.speed import CONTEXT_LENGTH, Speeds, measure_round, medians, time_engine

SHORT_PROMPT = "What is the capital of France?"
EXCHANGE_PROMPT_TOKENS = 200
EXCHANGE_ANSWER_TOKENS = 100


@dataclass(frozen=True)
class Figures:
    """All figures of one model. Units are in the names; prefill and decode are tokens a second.

    ``first_token_s`` runs from starting a process to the first byte of its answer. The peaks, in
    MiB, are of a process that reads 200 tokens and writes 100.
    """

    prefill_512: float | None
    prefill_2048: float | None
    decode_0: float | None
    decode_512: float | None
    decode_1500: float | None
    ttft_ms: float | None
    load_s: float
    first_token_s: float
    peak_rss_mb: float | None
    peak_anonymous_mb: float | None


def engine_options(
    bundle: Path, threads: int | None, cache_type: CacheType = "float32"
) -> EngineOptions:
    """A context that holds the longest measurement, or all that the model has."""
    longest = read_manifest(bundle).dimensions.context_length
    return EngineOptions(
        context_length=min(CONTEXT_LENGTH, longest), threads=threads, cache_type=cache_type
    )


def measure_load_s(bundle: Path, options: EngineOptions) -> float:
    """Seconds until an engine could read its first prompt, with onnxruntime already imported."""
    started = time.perf_counter()
    with Engine.load(bundle, options):
        return time.perf_counter() - started


def measure_speeds(
    bundle: Path, options: EngineOptions, rounds: int, report: Callable[[str], None]
) -> Speeds:
    """Medians of some rounds on one engine, after a short warm-up."""
    text = python_reference().text
    with Engine.load(bundle, options) as engine:
        prompt_ids = engine.encode_prompt(text[:30_000])
        for _ in engine.generate_tokens(prompt_ids[:64], engine.default_params(max_tokens=4)):
            pass
        timer = partial(time_engine, engine)
        results = []
        for number in range(rounds):
            report(f"speed: round {number + 1} of {rounds}")
            results.append(measure_round(timer, prompt_ids, engine.context_length))
        return medians(results)


def measure_first_token_s(bundle: Path, options: EngineOptions) -> float:
    """Seconds from starting ``edge-runtime run`` to the first byte of the answer."""
    return first_byte_s(
        [*_run_command(bundle, options), "--max-tokens", "8", "--temperature", "0", SHORT_PROMPT]
    )


def measure_memory(bundle: Path, options: EngineOptions) -> PeakMemory:
    """Peaks of ``edge-runtime run`` over an exchange of 300 tokens.

    Raises:
        CommandError: the model ended the answer early, so that the exchange was a smaller one.
    """
    with Engine.load(bundle, options) as engine:
        prompt_ids = engine.encode_prompt(python_reference().text[:4_000])
        prompt = engine.tokenizer.decode(prompt_ids[:EXCHANGE_PROMPT_TOKENS])
    command = [
        *_run_command(bundle, options), "--raw", "--json", "--temperature", "0", "--ignore-eos",
        "--max-tokens", str(EXCHANGE_ANSWER_TOKENS),
    ]  # fmt: skip
    peak, out = peak_memory(command, prompt)
    written = _completion_tokens(out)
    if written < EXCHANGE_ANSWER_TOKENS:
        raise CommandError(f"the exchange ended after {written} tokens of the answer")
    return peak


def measure(bundle: Path, options: EngineOptions, rounds: int) -> Figures:
    """Everything, with the rounds announced on standard error."""
    say("start-up")
    measure_load_s(bundle, options)  # the first one imports onnxruntime
    load_s = median(measure_load_s(bundle, options) for _ in range(rounds))
    first_token_s = median(measure_first_token_s(bundle, options) for _ in range(rounds))
    say("memory")
    peak = measure_memory(bundle, options)
    speeds = measure_speeds(bundle, options, rounds, say)
    return Figures(
        **asdict(speeds),
        load_s=load_s,
        first_token_s=first_token_s,
        peak_rss_mb=peak.rss_mb,
        peak_anonymous_mb=peak.anonymous_mb,
    )


def _run_command(bundle: Path, options: EngineOptions) -> list[str]:
    command = [sys.executable, "-m", "edge_runtime", "run", str(bundle)]
    command += ["--cache-type", options.cache_type]
    threads = options.threads
    return command if threads is None else [*command, "--threads", str(threads)]


def _completion_tokens(out: str) -> int:
    last = json.loads(out.strip().splitlines()[-1])
    return int(last["usage"]["completion_tokens"])


def add_arguments(arguments: argparse.ArgumentParser) -> None:
    """What it takes besides MODEL, --quant, --threads and --json."""
    arguments.add_argument("--rounds", type=int, default=3, help="rounds to take medians of")
    arguments.add_argument("--cache-type", choices=CACHE_TYPES, default="float32")


def main() -> None:
    """The command line."""
    arguments = parser("bench", __doc__)
    add_arguments(arguments)
    show(arguments.parse_args())


def show(asked: argparse.Namespace) -> None:
    """Measure what the arguments ask for, and print it.

    Raises:
        EdgeRuntimeError: there is no such model, or it cannot be measured.
    """
    if asked.rounds < 1:
        raise UsageError(f"--rounds is {asked.rounds}")
    bundle = bundle_of(asked)
    options = engine_options(bundle, asked.threads, asked.cache_type)
    figures = measure(bundle, options, asked.rounds)
    manifest = read_manifest(bundle)
    facts = {
        "model": manifest.name,
        "recipe": manifest.quantization.recipe,
        "cache_type": asked.cache_type,
        "threads": asked.threads,
        "rounds": asked.rounds,
        **asdict(this_machine()),
    }
    if asked.json:
        print(json.dumps({**_rounded(figures), **facts}, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("figure", "median", title=f"{manifest.name} ({facts['recipe']})")
    for name, value in _rounded(figures).items():
        table.add_row(name, "not measured" if value is None else f"{value:,}")
    Console().print(table)
    Console().print(f"{facts['cpu']}, {facts['onnxruntime']}, Python {facts['python']}")


def _rounded(figures: Figures) -> dict[str, float | None]:
    digits = {"load_s": 3, "first_token_s": 3}
    return {
        name: None if value is None else round(value, digits.get(name, 1))
        for name, value in asdict(figures).items()
    }


if __name__ == "__main__":
    run(main)
