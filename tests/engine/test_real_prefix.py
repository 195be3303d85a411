"""Warm and saved prompts on the real model: what need not be evaluated, and the same answers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edge_runtime.engine.engine import Engine, EngineOptions
from edge_runtime.engine.request import Completion
from edge_runtime.generation.params import SamplingParams

pytestmark = pytest.mark.model

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
SYSTEM = "You keep a lighthouse. " + "Each light has a rhythm of its own. " * 12


@pytest.fixture(scope="module")
def engine(real_bundle: Path) -> Iterator[Engine]:
    with Engine.load(real_bundle, EngineOptions(context_length=1024)) as engine:
        yield engine


def evaluated(engine: Engine) -> int:
    return engine.metrics.snapshot().counts.evaluated_tokens


def ask(*turns: str) -> list[dict[str, str]]:
    roles = itertools.cycle(("user", "assistant"))
    said = [{"role": role, "content": text} for role, text in zip(roles, turns, strict=False)]
    return [{"role": "system", "content": SYSTEM}, *said]


def assert_same_or_near_tie(
    engine: Engine, prompt: list[int], cold: Completion, warm: Completion
) -> None:
    """Equal tokens, or a parting where the two likeliest logits differ by next to nothing."""
    pairs = zip(cold.token_ids, warm.token_ids, strict=False)
    same = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
    if same == len(cold.token_ids) == len(warm.token_ids):
        return
    logits = list(engine.score([*prompt, *cold.token_ids[:same]]))[-1][-1]
    low, high = np.sort(logits)[-2:]
    assert high - low < 0.05, f"parted after {same} tokens without a near-tie"


def test_a_chats_next_turn_evaluates_only_what_is_new(engine: Engine) -> None:
    engine.reset()
    first = engine.generate(ask("Who are you?"), GREEDY)
    turn = ask("Who are you?", first.text, "What do you see?")
    warm = engine.generate(turn, GREEDY)
    new = warm.usage.prompt_tokens - warm.usage.cached_tokens
    assert warm.usage.cached_tokens >= first.usage.prompt_tokens
    assert new < 30
    engine.reset()
    cold = engine.generate(turn, GREEDY)
    assert cold.usage.cached_tokens == 0
    assert_same_or_near_tie(engine, engine.encode_chat(turn), cold, warm)


def test_a_prompt_that_is_held_whole_evaluates_one_token(engine: Engine) -> None:
    engine.reset()
    turn = ask("Who are you?")
    cold = engine.generate(turn, GREEDY)
    before = evaluated(engine)
    warm = engine.generate(turn, GREEDY)
    assert evaluated(engine) - before == warm.usage.completion_tokens, "one for each token said"
    assert warm.usage.cached_tokens == warm.usage.prompt_tokens - 1
    assert_same_or_near_tie(engine, engine.encode_chat(turn), cold, warm)


def test_a_saved_prompt_comes_back_bit_for_bit(
    engine: Engine, real_bundle: Path, tmp_path: Path
) -> None:
    engine.reset()
    ids = engine.chat_prefix(SYSTEM)
    engine.save_prefix(ids, tmp_path / "x.kv", system=SYSTEM)
    warm = engine.generate(ask("Who are you?"), GREEDY)
    with Engine.load(real_bundle, EngineOptions(context_length=512, slots=2)) as other:
        header = other.load_prefix(tmp_path / "x.kv")
        assert (header.tokens, header.system) == (len(ids), SYSTEM)
        restored = other.generate(ask("Who are you?"), GREEDY)
        other.save_prefix(ids, tmp_path / "y.kv", system=SYSTEM)
    assert restored.usage.cached_tokens == len(ids)
    assert restored.token_ids == warm.token_ids
    assert (tmp_path / "x.kv").read_bytes() == (tmp_path / "y.kv").read_bytes()


def test_every_conversation_begins_with_the_chat_prefix(engine: Engine) -> None:
    ids = engine.chat_prefix(SYSTEM)
    for text in ("Hello!", " ", "\n\n42", "日本"):
        found = engine.encode_chat(ask(text))
        shared = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(ids, found, strict=False))
        assert len(list(shared)) >= len(ids) - 1
