"""Scheduling on the real model: whoever is beside a request, its text stays what it is alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.near_tie import assert_same_or_near_tie

from edge_runtime.engine.engine import Engine, EngineOptions
from edge_runtime.engine.metrics import MetricsSnapshot
from edge_runtime.engine.request import Delta
from edge_runtime.errors import EdgeRuntimeError
from edge_runtime.generation.params import SamplingParams

pytestmark = pytest.mark.model

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
SHORT_PROMPTS = (
    "The capital of France is the city of",
    "Water boils when it is heated to a temperature of",
    "In the morning the fishermen went out to",
    "A triangle has three sides, and a square",
    "Once upon a time there was a little",
    "The opposite of hot is cold, and the opposite of",
    "My favourite colour is green because it",
    "Bread is made of flour, water, salt and",
)


@pytest.fixture(scope="module")
def engine(real_bundle: Path) -> Iterator[Engine]:
    # One thread: a barrier of two waits long where another process has the second core.
    with Engine.load(real_bundle, EngineOptions(threads=1)) as engine:
        yield engine


def alone(engine: Engine, ids: Sequence[int], params: SamplingParams = GREEDY) -> list[int]:
    engine.reset()
    return [d.token_id for d in engine.generate_tokens(ids, params)]


def together(
    bundle: Path,
    options: EngineOptions,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams = GREEDY,
) -> tuple[list[list[int]], MetricsSnapshot]:
    """All prompts submitted at once, and run to their end."""
    found: list[list[int]] = [[] for _ in prompts]
    with Engine.load(bundle, options) as engine:
        for i, prompt in enumerate(prompts):

            def emit(delta: Delta | EdgeRuntimeError, i: int = i) -> None:
                assert isinstance(delta, Delta), delta
                found[i] += delta.token_ids

            engine.submit(prompt, params, emit=emit)
        while engine.has_work:
            engine.step()
        return found, engine.metrics.snapshot()


def test_short_prompts_that_are_read_together_are_answered_as_alone(
    engine: Engine, real_bundle: Path
) -> None:
    prompts = [engine.encode_prompt(text) for text in SHORT_PROMPTS]
    expected = [alone(engine, prompt) for prompt in prompts]
    options = EngineOptions(threads=1, slots=8, context_length=128)
    found, metrics = together(real_bundle, options, prompts)
    assert metrics.counts.ragged_prefills > 0
    assert 0 < metrics.counts.padding_tokens <= 0.25 * sum(map(len, prompts))
    for prompt, ours, theirs in zip(prompts, found, expected, strict=True):
        assert_same_or_near_tie(engine, prompt, theirs, ours)


def test_preempted_requests_are_answered_as_if_nothing_had_happened(
    engine: Engine, real_bundle: Path
) -> None:
    params = dataclasses.replace(GREEDY, max_tokens=40)
    prompts = [engine.encode_prompt(text) for text in SHORT_PROMPTS[:3]]
    expected = [alone(engine, prompt, params) for prompt in prompts]
    options = EngineOptions(
        threads=1, slots=3, context_length=64, cache_tokens=76, admission="optimistic"
    )
    found, metrics = together(real_bundle, options, prompts, params)
    assert metrics.counts.preemptions > 0
    for prompt, ours, theirs in zip(prompts, found, expected, strict=True):
        assert_same_or_near_tie(engine, prompt, theirs, ours)


def test_what_follows_a_slide_is_what_follows_the_tokens_that_stayed(
    engine: Engine, real_bundle: Path
) -> None:
    ids = engine.encode_prompt(" ".join(SHORT_PROMPTS))[:60]
    options = EngineOptions(threads=1, context_length=64, context_full="slide", keep_tokens=4)
    params = dataclasses.replace(GREEDY, max_tokens=16)
    (found,), metrics = together(real_bundle, options, [ids], params)
    dropped = (64 - 4) // 2
    assert metrics.counts.slid_tokens == dropped
    stayed = [*ids[:4], *[*ids, *found[:4]][4 + dropped :]]
    expected = alone(engine, stayed, dataclasses.replace(params, max_tokens=12))
    assert_same_or_near_tie(engine, stayed, expected, found[4:])
