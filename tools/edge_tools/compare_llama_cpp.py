"""Measure a model beside llama.cpp: the same prompts, threads and greedy choice, in alternation.

    python -m edge_tools.compare_llama_cpp MODEL --llama-python PATH [--llama-kind Q4_0] [--json]

Alternation because shared machines have slow minutes: a round of ours is followed by a round of
theirs, and medians are compared. Knows how to measure neither (:mod:`edge_tools.speed`,
:mod:`edge_tools.peer_llama_cpp`).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from edge_runtime.engine.engine import Engine
from edge_runtime.errors import UsageError
from edge_tools.bench import engine_options
from edge_tools.command import bundle_of, parser, run, say, source_of
from edge_tools.machine import this_machine
from edge_tools.peer_llama_cpp import KINDS, LlamaCpp
from edge_tools.prose import python_reference
from edge_tools.speed import Speeds, Timed, measure_round, medians, time_engine


@dataclass(frozen=True)
class Comparison:
    """Medians of both, and ours over theirs (for ``ttft_ms``: theirs over ours; above 1 we win)."""

    ours: Speeds
    theirs: Speeds
    ratio: Speeds


def alternate(
    ours: Callable[[], Speeds],
    theirs: Callable[[], Speeds],
    rounds: int,
    report: Callable[[str], None],
) -> Comparison:
    """Take turns, and compare the medians."""
    our_rounds, their_rounds = [], []
    for number in range(rounds):
        report(f"round {number + 1} of {rounds}")
        our_rounds.append(ours())
        their_rounds.append(theirs())
    a, b = medians(our_rounds), medians(their_rounds)
    return Comparison(a, b, ratio_of(a, b))


def ratio_of(ours: Speeds, theirs: Speeds) -> Speeds:
    """How many times faster we are, figure by figure."""

    def of(name: str) -> float | None:
        a, b = getattr(ours, name), getattr(theirs, name)
        if a is None or b is None:
            return None
        return float(b / a if name == "ttft_ms" else a / b)

    return Speeds(**{name: of(name) for name in asdict(ours)})


def time_peer(peer: LlamaCpp, prompt_ids: Sequence[int], count: int) -> Timed:
    """One generation of llama.cpp, timed in its own process: the pipe is not counted."""
    generated = peer.generate(prompt_ids, count)
    return Timed(generated.first_s, generated.rest_s)


def main() -> None:
    """The command line."""
    made = parser("compare_llama_cpp", __doc__)
    made.add_argument("--source", type=Path, help="the .gguf file that llama.cpp runs")
    made.add_argument(
        "--llama-python", type=Path, required=True, help="an interpreter that has llama_cpp"
    )
    made.add_argument(
        "--llama-kind", choices=KINDS, help="let llama.cpp requantize the file to this kind first"
    )
    made.add_argument("--rounds", type=int, default=5, help="rounds to take medians of")
    asked = made.parse_args()
    if asked.rounds < 1:
        raise UsageError(f"--rounds is {asked.rounds}")
    source = asked.source or source_of(asked.model)
    bundle = bundle_of(asked)
    options = engine_options(bundle, asked.threads)
    threads = asked.threads or this_machine().usable_cpus
    with (
        tempfile.TemporaryDirectory() as folder,
        LlamaCpp(asked.llama_python) as peer,
        Engine.load(bundle, options) as engine,
    ):
        if asked.llama_kind:
            source = _requantized(peer, source, Path(folder), asked.llama_kind, threads)
        peer.load(source, threads=threads, context_length=engine.context_length)
        prompt_ids = engine.encode_prompt(python_reference().text[:30_000])
        time_engine(engine, prompt_ids[:64], 4)
        time_peer(peer, prompt_ids[:64], 4)
        result = alternate(
            lambda: measure_round(partial(time_engine, engine), prompt_ids, engine.context_length),
            lambda: measure_round(partial(time_peer, peer), prompt_ids, engine.context_length),
            asked.rounds,
            say,
        )
        facts = {
            "model": engine.manifest.name,
            "recipe": engine.manifest.quantization.recipe,
            "peer": f"llama-cpp-python {peer.version}",
            "peer_weights": asked.llama_kind or "as in the file",
            "threads": threads,
            "rounds": asked.rounds,
            **asdict(this_machine()),
        }
    if asked.json:
        print(json.dumps({**asdict(result), **facts}, indent=2))
    else:
        _print_table(result, facts)


def _requantized(peer: LlamaCpp, source: Path, folder: Path, kind: str, threads: int) -> Path:
    say(f"llama.cpp requantizes {source.name} to {kind}")
    destination = folder / f"{kind}.gguf"
    peer.requantize(source, destination, kind, threads)
    return destination


def _print_table(result: Comparison, facts: Mapping[str, object]) -> None:
    from rich.console import Console
    from rich.table import Table

    ours, theirs = f"{facts['recipe']}", f"llama.cpp, {facts['peer_weights']}"
    table = Table("figure", ours, theirs, "times faster", title=str(facts["model"]))
    for name in asdict(result.ours):
        values = (getattr(part, name) for part in (result.ours, result.theirs, result.ratio))
        table.add_row(name, *("-" if value is None else f"{value:,.2f}" for value in values))
    Console().print(table)
    Console().print(f"{facts['cpu']}, {facts['threads']} threads, {facts['onnxruntime']}")


if __name__ == "__main__":
    run(main)
