"""How fast a loaded model reads and writes: one round of figures, and the medians of several.

All times are from outside, by the clock, through the public engine: what a caller gets. Greedy, so
that sampling costs the same everywhere. The cache is emptied before each measurement. Knows no
runtime but as something that times one generation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import Protocol

from edge_runtime.engine.request import TokenDelta
from edge_runtime.errors import UsageError
from edge_runtime.generation.params import SamplingParams

DECODED_TOKENS = 64
TTFT_PROMPT_TOKENS = 128
# The longest prompt, one token after it, and a little air.
CONTEXT_LENGTH = 2048 + DECODED_TOKENS


@dataclass(frozen=True)
class Speeds:
    """Tokens a second, and ms to the first token of a 128-token prompt.

    ``decode_n`` is at n tokens held, over the next 64. None where the model's context is shorter.
    """

    prefill_512: float | None
    prefill_2048: float | None
    decode_0: float | None
    decode_512: float | None
    decode_1500: float | None
    ttft_ms: float | None


class TokenEngine(Protocol):
    """What is needed of an engine."""

    def generate_tokens(
        self, prompt_ids: Sequence[int], params: SamplingParams
    ) -> Iterator[TokenDelta]:
        """Tokens after a prompt."""

    def reset(self) -> None:
        """Forget what is cached."""


@dataclass(frozen=True)
class Timed:
    """Seconds to the first token, and seconds for the rest."""

    first_s: float
    rest_s: float


def time_engine(engine: TokenEngine, prompt_ids: Sequence[int], count: int) -> Timed:
    """Generate exactly ``count`` tokens after a prompt read from an empty cache.

    Raises:
        UsageError: the engine gave fewer tokens.
    """
    engine.reset()
    params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
    arrivals = []
    started = time.perf_counter()
    for _ in engine.generate_tokens(prompt_ids, params):
        arrivals.append(time.perf_counter())
    if len(arrivals) != count:
        raise UsageError(f"wanted {count} tokens after {len(prompt_ids)}, got {len(arrivals)}")
    return Timed(arrivals[0] - started, arrivals[-1] - arrivals[0])


# Reads a prompt from an empty cache and generates so many tokens after it.
Timer = Callable[[Sequence[int], int], Timed]


def measure_round(timer: Timer, prompt_ids: Sequence[int], context_length: int) -> Speeds:
    """One round of figures.

    Args:
        timer: runs one generation of a runtime that is loaded and warm.
        prompt_ids: at least 2,048 tokens to read from.
        context_length: tokens that the runtime holds.

    Raises:
        UsageError: too few prompt tokens.
    """
    if len(prompt_ids) < 2048:
        raise UsageError(f"{len(prompt_ids)} prompt tokens, and the longest prompt takes 2048")

    def run(held: int, count: int) -> Timed | None:
        if held + count > context_length:
            return None
        return timer(prompt_ids[:held], count)

    def decode_rate(result: Timed | None) -> float | None:
        return None if result is None else DECODED_TOKENS / result.rest_s

    def prefill_rate(tokens: int, result: Timed | None) -> float | None:
        return None if result is None else tokens / result.first_s

    short = run(TTFT_PROMPT_TOKENS, 1)
    # One token must be held for a second to follow from it.
    at_0 = run(1, DECODED_TOKENS + 1)
    at_512 = run(512, DECODED_TOKENS + 1)
    at_1500 = run(1500, DECODED_TOKENS + 1)
    return Speeds(
        prefill_512=prefill_rate(512, at_512),
        prefill_2048=prefill_rate(2048, run(2048, 1)),
        decode_0=decode_rate(at_0),
        decode_512=decode_rate(at_512),
        decode_1500=decode_rate(at_1500),
        ttft_ms=None if short is None else 1000 * short.first_s,
    )


def medians(rounds: Sequence[Speeds]) -> Speeds:
    """The median of each figure; None where any round has none."""

    def of(name: str) -> float | None:
        values = [getattr(r, name) for r in rounds]
        return None if not values or None in values else float(median(values))

    return Speeds(**{f.name: of(f.name) for f in fields(Speeds)})
