"""The int8 cache on the real model: nearly the float32 cache's answers, however the work is cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from support.int8_attention import needs_int8_attention
from support.near_tie import assert_same_or_near_tie

from edge_runtime.bundle import read_manifest
from edge_runtime.engine.engine import Engine, EngineOptions
from edge_runtime.engine.request import Delta
from edge_runtime.errors import EdgeRuntimeError
from edge_runtime.generation.params import SamplingParams

pytestmark = [pytest.mark.model, needs_int8_attention]

GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
TEXT = (
    "A lighthouse is a tower that carries a light. Sailors look for it at night, and each one has "
    "its own rhythm, so that nobody mistakes one coast for another. The keepers of old climbed the "
    "stairs every evening, trimmed the wick, wound the clockwork that turned the lens, and wrote "
    "down the weather. Today most lights run by themselves: a sensor notices the dusk, a relay "
    "closes, and an engineer a hundred miles away sees a green square on a screen. "
)


@pytest.fixture(scope="module")
def int8_bundle(real_bundle: Path) -> Path:
    if all(graph.cache_type != "int8" for graph in read_manifest(real_bundle).graphs):
        pytest.skip("the bundle was exported before there was an int8 cache")
    return real_bundle


@pytest.fixture(scope="module")
def engine(int8_bundle: Path) -> Iterator[Engine]:
    options = EngineOptions(cache_type="int8", threads=1, context_length=512)
    with Engine.load(int8_bundle, options) as engine:
        yield engine


def log_probabilities(engine: Engine, ids: Sequence[int]) -> np.ndarray:
    logits = np.concatenate(list(engine.score(ids))).astype(np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def test_its_predictions_are_within_a_hundredth_of_a_nat_of_the_float32_caches(
    engine: Engine, int8_bundle: Path
) -> None:
    """All tokens but the first are read while those before them are held in 8 bits."""
    ids = engine.encode_prompt(TEXT * 2)[:160]
    found = log_probabilities(engine, ids)
    with Engine.load(int8_bundle, EngineOptions(threads=1, context_length=512)) as exact:
        expected = log_probabilities(exact, ids)
    kl = float((np.exp(expected) * (expected - found)).sum(axis=-1).mean())
    assert 0 < kl < 0.01


@pytest.mark.parametrize("chunk", [7, 512])
def test_the_chunk_size_changes_no_token(engine: Engine, int8_bundle: Path, chunk: int) -> None:
    """The last chunk of 7 has a single token, which takes another way through the graph."""
    ids = engine.encode_prompt(TEXT)[:71]
    engine.reset()
    expected = [d.token_id for d in engine.generate_tokens(ids, GREEDY)]
    options = EngineOptions(cache_type="int8", threads=1, context_length=512, chunk_size=chunk)
    with Engine.load(int8_bundle, options) as other:
        found = [d.token_id for d in other.generate_tokens(ids, GREEDY)]
    assert_same_or_near_tie(engine, ids, expected, found)


def test_reading_token_by_token_differs_no_more_than_over_a_float32_cache(
    engine: Engine, int8_bundle: Path
) -> None:
    """Products of a single row round differently; the cache adds next to nothing to that."""
    ids = engine.encode_prompt(TEXT)[:70]
    in_chunks = log_probabilities(engine, ids)
    options = EngineOptions(cache_type="int8", threads=1, context_length=512, chunk_size=1)
    with Engine.load(int8_bundle, options) as other:
        one_by_one = log_probabilities(other, ids)
    assert float((np.exp(in_chunks) * (in_chunks - one_by_one)).sum(axis=-1).mean()) < 0.01


def test_batch_mates_and_a_copied_prefix_do_not_change_the_answer(
    engine: Engine, int8_bundle: Path
) -> None:
    start = engine.encode_prompt(TEXT)[:60]
    prompts = [[*start, *engine.encode_prompt(end)] for end in (" In short,", " One day", " But")]
    expected = []
    for prompt in prompts:
        engine.reset()
        expected.append([d.token_id for d in engine.generate_tokens(prompt, GREEDY)])
    options = EngineOptions(
        cache_type="int8", threads=1, context_length=256, slots=3, max_inter_token_ms=None
    )
    with Engine.load(int8_bundle, options) as other:
        heard: list[list[Delta | EdgeRuntimeError]] = [[] for _ in prompts]
        for prompt, said in zip(prompts, heard, strict=True):
            other.submit(prompt, GREEDY, emit=said.append)
        while other.has_work:
            other.step()
    for prompt, tokens, said in zip(prompts, expected, heard, strict=True):
        deltas = [delta for delta in said if isinstance(delta, Delta)]
        assert len(deltas) == len(said)
        found = [token for delta in deltas for token in delta.token_ids]
        assert_same_or_near_tie(engine, prompt, tokens, found)


def test_a_second_turn_reads_only_what_is_new_and_bytes_are_exact(engine: Engine) -> None:
    engine.reset()
    ids = engine.encode_prompt(TEXT)[:90]
    list(engine.generate_tokens(ids, GREEDY))
    memory = engine.memory()
    assert memory.cache_tokens == 90 + 15
    d = engine.manifest.dimensions
    assert memory.cache_bytes == memory.cache_tokens * d.layers * 2 * d.kv_heads * d.head_size
    usage = engine.generate([*ids, 28, 29, 30], GREEDY).usage
    assert usage is not None
    assert usage.cached_tokens == 90
    engine.reset()
    assert engine.memory().cache_bytes == 0
