"""Measure what the engine makes of several requests: ratios, each from one alternating run.

    python -m edge_tools.bench_engine MODEL [--quant int4] [--rounds 3] [--json]

Four streams together beside one; the second turn of a chat beside the first; how long running
streams wait while a long prompt is read; prompt lookup on a text that quotes and on one that does
not. Every ratio compares things that were measured in turns, so that a slow minute hits both. Knows
the engine through its public names alone.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from edge_runtime.bundle import read_manifest
from edge_runtime.engine.engine import Engine, EngineOptions
from edge_runtime.errors import UsageError
from edge_runtime.generation.params import SamplingParams
from edge_tools.command import bundle_of, parser, run, say
from edge_tools.machine import this_machine
from edge_tools.prose import python_reference

CONTEXT_LENGTH = 2304
STREAMS = 4
STREAM_TOKENS = 64
HISTORY_TOKENS = 1000
TURN_TOKENS = 20
LONG_PROMPT_TOKENS = 2000
ANSWER_TOKENS = 96
QUOTING = "Repeat the following text word for word, and then repeat it again.\n\n{text}\n\nRepetition:\n\n"
FREE = "Write a story about a lighthouse keeper who finds a message in a bottle."


@dataclass(frozen=True)
class EngineFigures:
    """Ratios above 1 are better, but for ``second_turn_ttft``, where less is.

    Attributes:
        four_streams: tokens/s of four streams together over those of one.
        second_turn_ttft: of a turn with 1,000 tokens of history, over that of reading them first.
        p99_inter_token_ms: of a running stream while a prompt of 2,000 tokens is read.
        alone_inter_token_ms: the median of the same stream alone.
        inter_token_bound_ms: what the engine was told.
        lookup_quoting: tokens/s with prompt lookup over those without, on a text that quotes.
        lookup_free: the same on a text that does not.
        lookup_accepted: share of drafted tokens that were right, quoting.
    """

    four_streams: float
    second_turn_ttft: float
    p99_inter_token_ms: float
    alone_inter_token_ms: float
    inter_token_bound_ms: float | None
    lookup_quoting: float
    lookup_free: float
    lookup_accepted: float


def decode_rate(engine: Engine, prompts: Sequence[Sequence[int]], count: int) -> float:
    """Tokens a second of all prompts' answers together, their prompts read."""
    engine.reset()
    arrivals: list[list[float]] = [[] for _ in prompts]
    params = SamplingParams(temperature=0.0, max_tokens=count + 1, ignore_eos=True)

    def note(times: list[float], _: object) -> None:
        times.append(time.perf_counter())

    for ids, times in zip(prompts, arrivals, strict=True):
        engine.submit(ids, params, emit=partial(note, times))
    while engine.has_work:
        engine.step()
    begun, ended = max(t[0] for t in arrivals), max(t[-1] for t in arrivals)
    return sum(sum(t > begun for t in times) for times in arrivals) / (ended - begun)


def first_token_s(engine: Engine, ids: Sequence[int]) -> float:
    """Seconds to the first token after a prompt, with whatever of it is cached."""
    started = time.perf_counter()
    for _ in engine.generate_tokens(ids, SamplingParams(temperature=0.0, max_tokens=1)):
        pass
    return time.perf_counter() - started


def inter_token_s(
    engine: Engine, stream: Sequence[int], prompt: Sequence[int] | None
) -> list[float]:
    """Gaps between a stream's tokens, all of them, or while a prompt beside it is read."""
    engine.reset()
    times: list[float] = []
    ended: list[float] = []
    params = SamplingParams(temperature=0.0, max_tokens=STREAM_TOKENS * 6, ignore_eos=True)
    running = engine.submit(stream, params, emit=lambda _: times.append(time.perf_counter()))
    while len(times) < 4:
        engine.step()
    begun = time.perf_counter()
    if prompt is not None:
        engine.submit(
            prompt,
            SamplingParams(temperature=0.0, max_tokens=1),
            emit=lambda _: ended.append(time.perf_counter()),
        )
    while len(times) < STREAM_TOKENS if prompt is None else not ended:
        engine.step()
    engine.cancel(running)
    while engine.has_work:
        engine.step()
    seen = [t for t in times if t >= begun and (not ended or t <= ended[0])]
    return [b - a for a, b in itertools.pairwise(seen)]


def answer_rate(engine: Engine, ids: Sequence[int]) -> float:
    """Tokens a second of a greedy answer, its prompt read."""
    engine.reset()
    params = SamplingParams(temperature=0.0, max_tokens=ANSWER_TOKENS, ignore_eos=True)
    deltas = list(engine.stream(list(ids), params))
    usage = deltas[-1].usage
    assert usage is not None
    return (usage.completion_tokens - 1) / usage.decode_s


def measure(bundle: Path, threads: int | None, rounds: int) -> EngineFigures:
    """Everything, with the rounds announced on standard error."""
    longest = read_manifest(bundle).dimensions.context_length
    if longest < CONTEXT_LENGTH:
        raise UsageError(f"the model's context of {longest} tokens is too short to measure with")
    options = EngineOptions(context_length=CONTEXT_LENGTH, threads=threads, slots=STREAMS)
    drafting = EngineOptions(
        context_length=CONTEXT_LENGTH, threads=threads, speculation="prompt-lookup"
    )
    with Engine.load(bundle, options) as engine, Engine.load(bundle, drafting) as drafter:
        ids = engine.encode_prompt(python_reference().text[:30_000])
        prompts = [ids[i * 120 : i * 120 + 64] for i in range(STREAMS)]
        four: list[float] = []
        turns: list[float] = []
        waits: list[float] = []
        alone: list[float] = []
        quoting: list[float] = []
        free: list[float] = []
        quote_ids = _chat(engine, QUOTING.format(text=python_reference().text[2_000:2_500]))
        free_ids = _chat(engine, FREE)
        decode_rate(engine, prompts, 4)
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            one = decode_rate(engine, prompts[:1], STREAM_TOKENS)
            four.append(decode_rate(engine, prompts, STREAM_TOKENS) / one)
            engine.reset()
            first_s = first_token_s(engine, ids[:HISTORY_TOKENS])
            turns.append(first_token_s(engine, ids[: HISTORY_TOKENS + TURN_TOKENS]) / first_s)
            alone += inter_token_s(engine, prompts[0], None)
            waits += inter_token_s(engine, prompts[0], ids[100 : 100 + LONG_PROMPT_TOKENS])
            for rates, prompt in ((quoting, quote_ids), (free, free_ids)):
                plain = answer_rate(engine, prompt)
                rates.append(answer_rate(drafter, prompt) / plain)
        accepted = drafter.metrics.snapshot().acceptance
    bound = options.max_inter_token_ms
    return EngineFigures(
        four_streams=median(four),
        second_turn_ttft=median(turns),
        p99_inter_token_ms=1000 * float(np.percentile(waits, 99)),
        alone_inter_token_ms=1000 * median(alone),
        inter_token_bound_ms=None if bound is None else float(bound),
        lookup_quoting=median(quoting),
        lookup_free=median(free),
        lookup_accepted=accepted or 0.0,
    )


def _chat(engine: Engine, text: str) -> list[int]:
    return engine.encode_chat([{"role": "user", "content": text}])


def main() -> None:
    """The command line."""
    arguments = parser("bench_engine", __doc__)
    arguments.add_argument("--rounds", type=int, default=3, help="rounds to take medians of")
    asked = arguments.parse_args()
    if asked.rounds < 1:
        raise UsageError(f"--rounds is {asked.rounds}")
    figures = measure(bundle_of(asked), asked.threads, asked.rounds)
    plain = {k: None if v is None else round(v, 3) for k, v in asdict(figures).items()}
    if asked.json:
        print(json.dumps({**plain, **asdict(this_machine())}, indent=2))
        return
    for name, value in plain.items():
        print(f"{name:24} {value}")


if __name__ == "__main__":
    run(main)
