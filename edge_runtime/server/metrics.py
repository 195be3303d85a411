"""Prometheus metrics of a server and of its engines.

Engines count for themselves (:mod:`edge_runtime.engine.metrics`); what they have counted is read
when it is asked for. Knows the pool; knows no route.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from edge_runtime.engine.memory import process_memory
from edge_runtime.engine.metrics import Distribution, MetricsSnapshot
from edge_runtime.server.drift import Drift
from edge_runtime.server.models import ModelPool
from edge_runtime.server.outcome import Outcome, RequestRecord

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "edge_runtime"
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class ServerMetrics:
    """Counts requests, and gathers what engines have counted.

    Args:
        pool: the models.
        drift: what their answers are like.
    """

    def __init__(self, pool: ModelPool, drift: Drift) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            f"{_PREFIX}_requests",
            "Requests by endpoint and outcome",
            ["endpoint", "outcome"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            f"{_PREFIX}_request_seconds",
            "From a request's arrival to its last byte",
            ["endpoint"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._answered = 0
        self._answered_s = 0.0
        self.registry.register(_Engines(pool))
        self.registry.register(_Signs(drift))

    @property
    def mean_seconds(self) -> float:
        """The mean time of answered requests so far; 1 before the first."""
        return self._answered_s / self._answered if self._answered else 1.0

    def count(self, record: RequestRecord) -> None:
        """Count a request that has ended."""
        self._requests.labels(record.endpoint, record.outcome.value).inc()
        if record.outcome is Outcome.ANSWERED:
            self._seconds.labels(record.endpoint).observe(record.seconds)
            self._answered += 1
            self._answered_s += record.seconds

    def text(self) -> bytes:
        """All metrics in Prometheus' text form."""
        return generate_latest(self.registry)


# Name, what it says, and the counts of a snapshot that it holds by label.
_COUNTS = {
    "prompt_tokens": "Prompt tokens of admitted requests, those found in the cache too",
    "cached_tokens": "Prompt tokens that were found in the cache",
    "generated_tokens": "Tokens generated",
    "prefix_hits": "Requests whose prompt was found in the cache, in part",
    "evaluated_tokens": "Tokens that went through the graph",
    "preemptions": "Sequences that were stopped for want of room and done again",
    "run_errors": "Runs of the graph that failed",
    "draft_tokens_proposed": "Tokens drafted",
    "draft_tokens_accepted": "Drafted tokens that were right",
}
_TIMES = {
    "time_to_first_token_seconds": ("From submission to the first token", "ttft_s"),
    "inter_token_seconds": ("Between two tokens of a stream", "inter_token_s"),
    "time_per_output_token_seconds": ("A finished request's mean a token", "time_per_token_s"),
    "queue_seconds": ("From submission to a slot", "queue_s"),
}


class _Engines(Collector):
    """Reads the engines' own metrics, and the process' memory."""

    def __init__(self, pool: ModelPool) -> None:
        self._pool = pool

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        loaded = self._pool.loaded
        found = {one.served.name: one.engine.metrics.snapshot() for one in loaded}
        yield from self._process()
        yield _gauge("models_loaded", "Models that are loaded", len(found))
        for name, help_text in _COUNTS.items():
            family = CounterMetricFamily(f"{_PREFIX}_{name}", help_text, labels=["model"])
            for model, snapshot in found.items():
                family.add_metric([model], getattr(snapshot.counts, name))
            yield family
        finished = CounterMetricFamily(
            f"{_PREFIX}_answers", "Finished answers", labels=["model", "reason"]
        )
        for model, snapshot in found.items():
            for reason, count in snapshot.finished.items():
                finished.add_metric([model, reason.value], count)
        yield finished
        for name, (help_text, attribute) in _TIMES.items():
            histogram = HistogramMetricFamily(f"{_PREFIX}_{name}", help_text, labels=["model"])
            for model, snapshot in found.items():
                observed: Distribution = getattr(snapshot, attribute)
                histogram.add_metric([model], _buckets(observed), observed.sum)
            yield histogram
        for name, help_text, values in self._gauges(found):
            family_of_gauges = GaugeMetricFamily(f"{_PREFIX}_{name}", help_text, labels=["model"])
            for model, value in values.items():
                family_of_gauges.add_metric([model], value)
            yield family_of_gauges

    def _gauges(
        self, found: dict[str, MetricsSnapshot]
    ) -> Iterator[tuple[str, str, dict[str, float]]]:
        gauges = {model: snapshot.gauges for model, snapshot in found.items()}
        yield (
            "running_sequences",
            "Sequences with a slot",
            {m: g.running for m, g in gauges.items()},
        )
        yield "queue_depth", "Requests without a slot", {m: g.waiting for m, g in gauges.items()}
        yield (
            "slots",
            "Sequences that run at the same time",
            {m: g.slots for m, g in gauges.items()},
        )
        yield (
            "kv_cache_tokens",
            "Tokens that the cache holds",
            {m: g.cache_tokens for m, g in gauges.items()},
        )
        yield (
            "kv_cache_capacity_tokens",
            "Tokens that the cache can hold",
            {
                one.served.name: one.slots * one.engine.context_length
                for one in self._pool.loaded
                if one.served.name in gauges
            },
        )

    def _process(self) -> Iterator[Metric]:
        memory = process_memory()
        if memory.resident_bytes is not None:
            yield _gauge("memory_resident_bytes", "Resident memory", memory.resident_bytes)
        if memory.anonymous_bytes is not None:
            yield _gauge(
                "memory_anonymous_bytes",
                "Resident memory that the system cannot drop",
                memory.anonymous_bytes,
            )
        if self._pool.memory_cap_bytes is not None:
            yield _gauge("memory_cap_bytes", "The memory cap", self._pool.memory_cap_bytes)


class _Signs(Collector):
    """The means of what recent answers were like, and of the baseline."""

    def __init__(self, drift: Drift) -> None:
        self._drift = drift

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        degraded = GaugeMetricFamily(
            f"{_PREFIX}_degraded", "1 while answers have drifted", labels=["model"]
        )
        means = GaugeMetricFamily(
            f"{_PREFIX}_answer_sign",
            "Means of answers that were looked at: nats, and shares from 0 to 1",
            labels=["model", "sign", "over"],
        )
        for model, watch in self._drift.watches.items():
            degraded.add_metric([model], watch.degraded)
            for over, signs in (("recent", watch.recent), ("baseline", watch.baseline)):
                for sign, value in vars(signs).items() if signs is not None else ():
                    means.add_metric([model, sign, over], value)
        yield degraded
        yield means


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{_PREFIX}_{name}", help_text, value=value)


def _buckets(observed: Distribution) -> list[tuple[str, float]]:
    """Cumulative counts by upper bound, as Prometheus has them."""
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*observed.bounds, float("inf")), observed.counts, strict=True):
        total += count
        buckets.append(("+Inf" if bound == float("inf") else str(bound), total))
    return buckets
