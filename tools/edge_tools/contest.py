"""Figures of several runtimes on one machine, taken in alternation.

Alternation because shared machines have slow minutes: each round measures everybody once, and
medians are compared. Every runtime has a process of its own. Knows runtimes as peers alone, and
prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

from edge_tools.peers.peer import Peer, Runtime, command
from edge_tools.process import first_byte_s, peak_of
from edge_tools.speed import CONTEXT_LENGTH, Timed, measure_round

STREAMS = 4
STREAM_TOKENS = 48
_STREAM_PROMPT = 64
_CACHED_PREFIX = 1000
_CACHED_MORE = 24
EXCHANGE_CONTEXT = 2048
EXCHANGE_PROMPT = 200
EXCHANGE_ANSWER = 100
_FIRST_TOKEN_PROMPT = 32

# Figures of which less is better.
SMALLER_IS_BETTER = frozenset(
    ("ttft_ms", "ttft_cached_ms", "first_token_s", "peak_rss_mb", "peak_anonymous_mb", "weights_mb")
)

Figures = Mapping[str, float | None]


@dataclass(frozen=True)
class Contestant:
    """One runtime with one model file.

    Args:
        label: for people, unique.
        runtime: which.
        python: its interpreter; None is this one.
        path: the model, in the runtime's own format.
        weights_bytes: size of the weights.
    """

    label: str
    runtime: Runtime
    python: Path | None
    path: Path
    weights_bytes: int


@dataclass(frozen=True)
class Result:
    """What a contestant came to: medians of its rounds, by figure."""

    label: str
    version: str
    figures: Figures


def hold(
    contestants: Sequence[Contestant],
    prompt_ids: Sequence[int],
    *,
    threads: int,
    rounds: int,
    report: Callable[[str], None],
) -> list[Result]:
    """Measure all contestants.

    Args:
        contestants: who takes part.
        prompt_ids: tokens to read, at least 2,048.
        threads: of each.
        rounds: to take medians of.
        report: told how far it is.
    """
    speeds: dict[str, list[Figures]] = {c.label: [] for c in contestants}
    starts: dict[str, list[Figures]] = {c.label: [] for c in contestants}
    versions: dict[str, str] = {}
    for number in range(rounds):
        for contestant in contestants:
            report(f"speed, round {number + 1} of {rounds}: {contestant.label}")
            # A fresh process a round: what waits in memory beside it must not differ.
            with Peer(contestant.runtime, contestant.python) as peer:
                peer.load(contestant.path, threads=threads, context_length=CONTEXT_LENGTH)
                versions[contestant.label] = peer.version
                speeds[contestant.label].append(speed_figures(peer, prompt_ids))
    for number in range(rounds):
        for contestant in contestants:
            report(f"start-up and memory, round {number + 1} of {rounds}: {contestant.label}")
            starts[contestant.label].append(start_figures(contestant, prompt_ids, threads))
    return [
        Result(
            c.label,
            versions[c.label],
            {
                **medians_of(speeds[c.label]),
                **medians_of(starts[c.label]),
                "weights_mb": c.weights_bytes / 1e6,
            },
        )
        for c in contestants
    ]


def speed_figures(peer: Peer, prompt_ids: Sequence[int]) -> Figures:
    """One round of a loaded peer, after a short warm-up."""
    peer.generate(prompt_ids[:64], 4)
    speeds = measure_round(partial(_time, peer), prompt_ids, CONTEXT_LENGTH)
    prompts = [prompt_ids[i * 100 : i * 100 + _STREAM_PROMPT] for i in range(STREAMS)]
    prefix, more = prompt_ids[:_CACHED_PREFIX], prompt_ids[1200 : 1200 + _CACHED_MORE]
    cached_s = peer.cached(prefix, more)
    return {
        **asdict(speeds),
        "four_streams": peer.together(prompts, STREAM_TOKENS),
        "ttft_cached_ms": None if cached_s is None else 1000 * cached_s,
    }


def start_figures(contestant: Contestant, prompt_ids: Sequence[int], threads: int) -> Figures:
    """Time from process start to a first token, and the peaks of an exchange of 300 tokens."""
    ids = [str(token) for token in prompt_ids[:_FIRST_TOKEN_PROMPT]]
    once = [*command(contestant.runtime, contestant.python), "--once", str(contestant.path)]
    first_token_s = first_byte_s([*once, str(threads), str(EXCHANGE_CONTEXT), *ids])
    with Peer(contestant.runtime, contestant.python) as peer, peak_of(peer.pid) as peak:
        peer.load(contestant.path, threads=threads, context_length=EXCHANGE_CONTEXT)
        peer.generate(prompt_ids[:EXCHANGE_PROMPT], EXCHANGE_ANSWER)
    return {
        "first_token_s": first_token_s,
        "peak_rss_mb": peak().rss_mb,
        "peak_anonymous_mb": peak().anonymous_mb,
    }


def medians_of(rounds: Sequence[Figures]) -> Figures:
    """The median of each figure; None where any round has none."""

    def of(name: str) -> float | None:
        values = [r[name] for r in rounds]
        known = [value for value in values if value is not None]
        return float(median(known)) if len(known) == len(values) else None

    return {name: of(name) for name in rounds[0]}


def _time(peer: Peer, prompt_ids: Sequence[int], count: int) -> Timed:
    generated = peer.generate(prompt_ids, count)
    return Timed(generated.first_s, generated.rest_s)
