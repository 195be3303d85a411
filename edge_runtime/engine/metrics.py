"""What an engine has done so far, in numbers: one object that everybody reads.

The engine's rooms count into it, a few hundred nanoseconds an event; the server, the command line
and the benchmarks read frozen snapshots from any thread. Knows no request, no array and no format
of a monitoring system.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from types import MappingProxyType

from edge_runtime.engine.request import FinishReason

# Upper bounds in seconds. A token takes milliseconds, a prompt on a small device up to minutes.
_FIRST_TOKEN_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_TOKEN_BOUNDS_S = (0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
_QUEUE_BOUNDS_S = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class StepKind(str, Enum):
    """What a step did."""

    PREFILL = "prefill"
    DECODE = "decode"
    VERIFY = "verify"  # a decode step in which some row carried drafts


class PressureAction(str, Enum):
    """What was given up to stay under the memory cap, in the order in which it is tried."""

    DROP_PREFIXES = "drop_prefixes"
    SHRINK_ARENA = "shrink_arena"
    STOP_ADMITTING = "stop_admitting"
    PREEMPT = "preempt"


@dataclass(frozen=True)
class Distribution:
    """Observations in seconds, counted in buckets.

    ``counts[i]`` is of observations above ``bounds[i - 1]`` and up to ``bounds[i]``; the last
    count, one more than there are bounds, is of those above all bounds.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    count: int
    sum: float

    @property
    def mean(self) -> float | None:
        """The mean; None without observations."""
        return self.sum / self.count if self.count else None

    def quantile(self, q: float) -> float | None:
        """The upper bound of the bucket that holds the quantile; None without observations.

        Infinite where it lies above all bounds. Exact only to the bucket.
        """
        if not self.count:
            return None
        seen = 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            seen += count
            if seen >= q * self.count:
                return bound
        return float("inf")


@dataclass(frozen=True)
class Counts:
    """Totals since the engine was loaded. Other rooms add fields of their own, all ints from 0.

    Tokens: ``prompt_tokens`` of admitted requests, ``cached_tokens`` of them found in the cache
    (by ``prefix_hits`` requests; for ``prefix_copies`` of them copied from another slot).
    ``evaluated_tokens`` went through the graph, with ``padding_tokens`` beside them in ragged
    prefills. ``decode_rows`` is summed over decode and verify steps.
    """

    requests_submitted: int = 0
    requests_refused: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    cached_tokens: int = 0
    prefix_hits: int = 0
    prefix_copies: int = 0
    prefix_evictions: int = 0
    evaluated_tokens: int = 0
    padding_tokens: int = 0
    ragged_prefills: int = 0
    decode_rows: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    slid_tokens: int = 0
    run_errors: int = 0
    draft_tokens_proposed: int = 0
    draft_tokens_accepted: int = 0


@dataclass(frozen=True)
class Gauges:
    """How things stand now.

    ``cache_tokens`` are held by running sequences and warm prefixes; ``reserved_tokens`` of
    ``budget_tokens`` are promised to running sequences; the budget is None where there is none.
    """

    slots: int = 0
    running: int = 0
    waiting: int = 0
    cache_tokens: int = 0
    reserved_tokens: int = 0
    budget_tokens: int | None = None


@dataclass(frozen=True)
class MetricsSnapshot:
    """An engine's metrics at one moment.

    Times are in seconds: ``ttft_s`` from submission to a request's first token,
    ``inter_token_s`` between two tokens of a stream, ``time_per_token_s`` one mean for each
    finished request of two tokens or more, ``queue_s`` from submission to a slot.
    """

    counts: Counts
    gauges: Gauges
    steps: Mapping[StepKind, int]
    step_seconds: Mapping[StepKind, float]
    finished: Mapping[FinishReason, int]
    pressure: Mapping[PressureAction, int]
    ttft_s: Distribution
    inter_token_s: Distribution
    time_per_token_s: Distribution
    queue_s: Distribution

    @property
    def batch_occupancy(self) -> float | None:
        """The share of slots that worked in a mean decode step; None before the first."""
        steps = self.steps[StepKind.DECODE] + self.steps[StepKind.VERIFY]
        possible = steps * self.gauges.slots
        return self.counts.decode_rows / possible if possible else None

    @property
    def padding_waste(self) -> float:
        """Padding tokens for each token that was asked for."""
        evaluated = self.counts.evaluated_tokens
        return self.counts.padding_tokens / evaluated if evaluated else 0.0

    @property
    def acceptance(self) -> float | None:
        """The share of drafted tokens that were accepted; None without drafts."""
        proposed = self.counts.draft_tokens_proposed
        return self.counts.draft_tokens_accepted / proposed if proposed else None


@dataclass
class _Histogram:
    bounds: tuple[float, ...]
    counts: list[int] = field(init=False)
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def freeze(self) -> Distribution:
        return Distribution(self.bounds, tuple(self.counts), sum(self.counts), self.sum)


class EngineMetrics:
    """Counts what an engine does; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {f.name: 0 for f in fields(Counts)}
        self._gauges = Gauges()
        self._steps = dict.fromkeys(StepKind, 0)
        self._step_seconds = dict.fromkeys(StepKind, 0.0)
        self._finished = dict.fromkeys(FinishReason, 0)
        self._pressure = dict.fromkeys(PressureAction, 0)
        self._ttft = _Histogram(_FIRST_TOKEN_BOUNDS_S)
        self._inter_token = _Histogram(_TOKEN_BOUNDS_S)
        self._time_per_token = _Histogram(_TOKEN_BOUNDS_S)
        self._queue = _Histogram(_QUEUE_BOUNDS_S)

    def add(self, **amounts: int) -> None:
        """Add to counts, by the names of :class:`Counts`.

        Raises:
            KeyError: no such count.
        """
        with self._lock:
            for name, amount in amounts.items():
                self._counts[name] += amount

    def set_gauges(self, gauges: Gauges) -> None:
        """Say how things stand."""
        with self._lock:
            self._gauges = gauges

    def count_step(
        self, kind: StepKind, *, rows: int, tokens: int, width: int, seconds: float
    ) -> None:
        """Count a step of ``rows`` rows, ``width`` positions each, ``tokens`` of them real."""
        with self._lock:
            self._steps[kind] += 1
            self._step_seconds[kind] += seconds
            counts = self._counts
            counts["evaluated_tokens"] += tokens
            # A verify step is padded where rows carry drafts of several lengths.
            counts["padding_tokens"] += rows * width - tokens
            if kind is not StepKind.PREFILL:
                counts["decode_rows"] += rows
            elif rows > 1:
                counts["ragged_prefills"] += 1

    def count_pressure(self, action: PressureAction) -> None:
        """Count something that was given up to stay under the cap."""
        with self._lock:
            self._pressure[action] += 1

    def count_admission(
        self, *, queue_s: float, prompt_tokens: int, cached_tokens: int, copied: bool
    ) -> None:
        """Count a request's first admission to a slot."""
        with self._lock:
            self._queue.observe(queue_s)
            counts = self._counts
            counts["prompt_tokens"] += prompt_tokens
            counts["cached_tokens"] += cached_tokens
            counts["prefix_hits"] += cached_tokens > 0
            counts["prefix_copies"] += copied

    def count_first_token(self, ttft_s: float) -> None:
        """Count a request's first token."""
        with self._lock:
            self._counts["generated_tokens"] += 1
            self._ttft.observe(ttft_s)

    def count_next_token(self, since_last_s: float) -> None:
        """Count a further token of a stream."""
        with self._lock:
            self._counts["generated_tokens"] += 1
            self._inter_token.observe(since_last_s)

    def count_finish(self, reason: FinishReason, *, time_per_token_s: float | None) -> None:
        """Count a request's end; without a time where it has fewer than two tokens."""
        with self._lock:
            self._finished[reason] += 1
            if time_per_token_s is not None:
                self._time_per_token.observe(time_per_token_s)

    def snapshot(self) -> MetricsSnapshot:
        """All metrics as they stand at this moment."""
        with self._lock:
            return MetricsSnapshot(
                counts=Counts(**self._counts),
                gauges=self._gauges,
                steps=MappingProxyType(dict(self._steps)),
                step_seconds=MappingProxyType(dict(self._step_seconds)),
                finished=MappingProxyType(dict(self._finished)),
                pressure=MappingProxyType(dict(self._pressure)),
                ttft_s=self._ttft.freeze(),
                inter_token_s=self._inter_token.freeze(),
                time_per_token_s=self._time_per_token.freeze(),
                queue_s=self._queue.freeze(),
            )
