"""The engine on the real model: what the doubles cannot show."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.near_tie import assert_same_or_near_tie

from edge_runtime.engine.driver import EngineDriver
from edge_runtime.engine.engine import Engine, EngineOptions
from edge_runtime.engine.request import Delta, FinishReason
from edge_runtime.errors import EdgeRuntimeError
from edge_runtime.generation.params import SamplingParams

pytestmark = pytest.mark.model

GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
QUESTION = [{"role": "user", "content": "Name the capital city of France."}]
LONG_TEXT = (
    "A lighthouse is a tower that carries a light. Sailors look for it at night. "
    "Each one has its own rhythm, so that nobody mistakes one coast for another. "
) * 12


@pytest.fixture(scope="module")
def engine(real_bundle: Path) -> Iterator[Engine]:
    with Engine.load(real_bundle) as engine:
        yield engine


def test_it_knows_the_capital_of_france(engine: Engine) -> None:
    completion = engine.generate(QUESTION, GREEDY)
    assert completion.text == "The capital city of France is Paris."
    assert completion.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("chunk", [1, 7, 512])
def test_the_chunk_size_does_not_change_the_answer(
    engine: Engine, real_bundle: Path, chunk: int
) -> None:
    ids = engine.encode_prompt(LONG_TEXT)[:150]
    engine.reset()
    expected = [d.token_id for d in engine.generate_tokens(ids, GREEDY)]
    with Engine.load(real_bundle, EngineOptions(chunk_size=chunk)) as other:
        found = [d.token_id for d in other.generate_tokens(ids, GREEDY)]
    assert_same_or_near_tie(engine, ids, expected, found)


def test_a_held_prefix_does_not_change_the_answer(engine: Engine) -> None:
    ids = engine.encode_prompt(LONG_TEXT)[:150]
    engine.reset()
    expected = [d.token_id for d in engine.generate_tokens(ids, GREEDY)]
    engine.reset()
    list(engine.generate_tokens(ids[:100], GREEDY))
    deltas = list(engine.stream(engine.tokenizer.decode(ids), GREEDY))
    usage = deltas[-1].usage
    assert usage is not None
    assert usage.cached_tokens >= 100
    found = [token for delta in deltas for token in delta.token_ids]
    assert_same_or_near_tie(engine, ids, expected, found)


def test_scoring_in_chunks_gives_the_logits_of_generation(engine: Engine) -> None:
    ids = engine.encode_prompt(LONG_TEXT)[:100]
    scored = np.concatenate(list(engine.score(ids)))
    assert scored.shape == (100, engine.manifest.dimensions.vocabulary_size)
    token = next(engine.generate_tokens(ids, GREEDY)).token_id
    assert token == int(scored[-1].argmax())


def test_the_same_seed_and_cache_give_the_same_text(engine: Engine) -> None:
    """A prompt that is held is read in other pieces than a new one, and rounds differently."""

    def answer(params: SamplingParams) -> tuple[int, ...]:
        engine.reset()
        return engine.generate(QUESTION, params).token_ids

    params = SamplingParams(temperature=1.0, top_p=0.9, seed=7, max_tokens=30)
    assert answer(params) == answer(params)
    assert answer(params) != answer(dataclasses.replace(params, seed=8, temperature=2.0))


@pytest.mark.parametrize("text", ["日本語のテキスト、", "🎉👩‍👩‍👧‍👦🇯🇵", "e\u0301a\u0308 หมู ด้วย"])
def test_streams_of_any_script_hold_whole_characters(engine: Engine, text: str) -> None:
    """The model is made to say the text, token by token, by a bias towards each."""
    ids = engine.tokenizer.encode(text)
    said = "".join(forced(engine, ids))
    assert said == text


def forced(engine: Engine, ids: list[int]) -> Iterator[str]:
    from edge_runtime.engine.text_stream import TextStream

    stream = TextStream(engine.tokenizer, GREEDY)
    for token in ids:
        piece = stream.add(token)
        assert "\ufffd" not in piece
        yield piece
    yield stream.flush()


def test_a_repeated_emoji_prompt_streams_without_replacement_characters(engine: Engine) -> None:
    params = SamplingParams(temperature=1.5, seed=1, max_tokens=60, ignore_eos=True)
    pieces = [d.text for d in engine.stream("🎉🎊🥳 日本 🎉🎊🥳 日本 🎉🎊🥳 日本", params)]
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_stop_string_that_straddles_tokens_is_cut_exactly(engine: Engine) -> None:
    whole = engine.generate(QUESTION, GREEDY).text
    assert "city of France is Paris" in whole
    params = dataclasses.replace(GREEDY, stop=("ty of Fra",))
    cut = engine.generate(QUESTION, params)
    assert cut.text == whole[: whole.index("ty of Fra")]
    assert cut.finish_reason is FinishReason.STOP


def test_a_long_prefill_is_cancelled_inside_a_run(real_bundle: Path) -> None:
    """With one chunk for the whole prompt, only stopping the run itself can be quick."""
    options = EngineOptions(chunk_size=4096, context_length=4096)
    with Engine.load(real_bundle, options) as engine:
        ids = (engine.encode_prompt(LONG_TEXT) * 20)[:3500]
        started = time.perf_counter()
        next(engine.generate_tokens(ids, GREEDY))
        whole_s = time.perf_counter() - started
        engine.reset()
        deltas: list[Delta | EdgeRuntimeError] = []
        sequence = engine.submit(ids, GREEDY, emit=deltas.append)
        timer = threading.Timer(whole_s / 10, engine.cancel, [sequence])
        timer.start()
        while engine.has_work:
            engine.step()
        timer.join()
        assert isinstance(deltas[0], Delta)
        assert deltas[0].finish_reason is FinishReason.CANCELLED
        assert deltas[0].token_ids == ()
        assert sequence.held_tokens == 0, "the run itself was stopped"
        assert engine.generate(QUESTION, GREEDY).text.endswith("Paris.")


def test_a_driver_serves_several_requests_in_turn(engine: Engine) -> None:
    with EngineDriver(engine) as driver:
        handles = [driver.submit(engine.encode_chat(QUESTION), GREEDY) for _ in range(3)]
        texts = ["".join(d.text for d in handle) for handle in handles]
    assert len(set(texts)) == 1


def test_a_prefix_copied_from_a_running_sequence_gives_the_same_answer(
    engine: Engine, real_bundle: Path
) -> None:
    start = engine.encode_prompt(LONG_TEXT)[:100]
    prompts = [[*start, *engine.encode_prompt(end)] for end in (" In short,", " One day")]
    expected = []
    for prompt in prompts:
        engine.reset()
        expected.append([d.token_id for d in engine.generate_tokens(prompt, GREEDY)])
    options = EngineOptions(slots=2, context_length=256)
    with Engine.load(real_bundle, options) as other, EngineDriver(other) as driver:
        deltas = iter(driver.submit(prompts[0], GREEDY))
        begun = next(deltas)  # its prompt is in the cache now, and it runs on
        second = list(driver.submit(prompts[1], GREEDY))
        found = [[t for d in each for t in d.token_ids] for each in ([begun, *deltas], second)]
    usage = second[-1].usage
    assert usage is not None
    assert usage.cached_tokens >= 100
    for prompt, ours, theirs in zip(prompts, found, expected, strict=True):
        assert_same_or_near_tie(engine, prompt, theirs, ours)


def test_the_cache_is_given_back(engine: Engine) -> None:
    engine.reset()
    ids = engine.encode_prompt(LONG_TEXT)
    list(engine.generate_tokens(ids, GREEDY))
    held = engine.memory()
    assert held.cache_tokens >= len(ids)
    engine.reset()
    released = engine.memory()
    assert released.cache_bytes == 0
    if held.anonymous_bytes is not None and released.anonymous_bytes is not None:
        assert held.anonymous_bytes - released.anonymous_bytes > held.cache_bytes // 2
