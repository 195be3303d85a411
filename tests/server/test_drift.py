"""Signs of answers, and when they say that a model's answers have drifted."""

from __future__ import annotations

import math
from typing import Any

import pytest

from edge_runtime.engine.request import ChosenLogprob, Delta, TokenLogprob
from edge_runtime.server.drift import (
    BASELINE_ANSWERS,
    LOOK_AT_EVERY,
    RECENT_ANSWERS,
    DriftWatch,
    LookedAt,
    Signs,
    entropy_of,
    repetition,
)

FINE = Signs(entropy=1.0, logprob=-1.0, repetition=0.1, empty=0.0, refusal=0.0)


def entry(*probabilities: float) -> ChosenLogprob:
    top = tuple(TokenLogprob(i, math.log(p)) for i, p in enumerate(probabilities))
    return ChosenLogprob(top[0], top)


def test_entropy_counts_what_is_left_as_one_token() -> None:
    assert entropy_of(entry(0.5, 0.5)) == pytest.approx(math.log(2))
    assert entropy_of(entry(0.5)) == pytest.approx(math.log(2))
    assert entropy_of(entry(1.0)) == pytest.approx(0.0)


def test_repetition_is_the_share_of_grams_seen_before() -> None:
    assert repetition([1, 2, 3]) == 0 and repetition([1, 2, 3, 4, 5]) == 0
    assert repetition([7] * 13) == pytest.approx(0.9)


def test_an_answers_signs_come_from_its_deltas_which_lose_their_logprobs() -> None:
    looked = LookedAt()
    assert looked.signs() is None
    kept = looked.strip(Delta("I'm sorry", (1, 2), (entry(0.5, 0.5), entry(1.0))))
    assert kept == Delta("I'm sorry", (1, 2))
    signs = looked.signs()
    assert signs is not None and signs.refusal == 1 and signs.empty == 0
    assert signs.logprob == pytest.approx(-math.log(2) / 2)


def watched(recent: Signs, *, spread: float = 0.0) -> DriftWatch:
    watch = DriftWatch()
    for i in range(BASELINE_ANSWERS):
        shift = spread if i % 2 else -spread
        watch.add(Signs(1.0 + shift, -1.0, 0.1, 0.0, 0.0))
    for _ in range(RECENT_ANSWERS - 1):
        watch.add(recent)
    assert not watch.degraded, "too few yet"
    watch.add(recent)
    return watch


@pytest.mark.parametrize(
    "recent, spread, degraded",
    [
        (FINE, 0.0, False),
        (Signs(1.2, -1.0, 0.1, 0, 0), 0.0, False),  # beyond all errors, but not by enough
        (Signs(1.3, -1.0, 0.1, 0, 0), 0.0, True),
        (Signs(1.3, -1.0, 0.1, 0, 0), 1.0, False),  # within what answers differ by
        (Signs(0.5, -1.0, 0.1, 0, 0), 0.0, True),
        (Signs(1.0, -1.5, 0.1, 0, 0), 0.0, True),
        (Signs(1.0, -1.0, 0.5, 0, 0), 0.0, True),
        (Signs(1.0, -1.0, 0.1, 0.3, 0), 0.0, True),
        (Signs(1.0, -1.0, 0.1, 0, 0.3), 0.0, True),
        (Signs(1.0, -1.0, 0.0, 0, 0), 0.0, False),  # fewer repetitions are no loss
    ],
)
def test_the_rule(recent: Signs, spread: float, degraded: bool) -> None:
    watch = watched(recent, spread=spread)
    assert watch.degraded is degraded


def test_a_server_looks_at_some_answers_and_clients_do_not_see_it(start: Any) -> None:
    running = start()
    body = {"prompt": "abc!", "temperature": 0}
    answers = [running.post("/v1/completions", body).json() for _ in range(LOOK_AT_EVERY + 1)]
    assert all(a["choices"][0]["logprobs"] is None for a in answers)
    text = running.client.get("/metrics").text
    at = 'model="shouter",over="recent",sign="empty"'
    assert f"edge_runtime_answer_sign{{{at}}} 0.0" in text
    assert 'edge_runtime_degraded{model="shouter"} 0.0' in text
    assert running.client.get("/health").json() == {"status": "ok", "degraded": False}
    for _ in range(BASELINE_ANSWERS):
        running.context.drift.of("shouter").add(FINE)
    for _ in range(RECENT_ANSWERS):
        running.context.drift.of("shouter").add(Signs(5.0, -5.0, 0.9, 1.0, 0.0))
    assert running.client.get("/health").json()["degraded"] is True
