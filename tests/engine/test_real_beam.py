"""Beam search on the real model, against a plain one over the model's own logits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edge_runtime.engine.engine import Engine, EngineOptions
from edge_runtime.generation.beam import BeamParams

pytestmark = pytest.mark.model

PROMPT = "The capital city of France is"
WIDTH, TOKENS = 3, 5
Logprobs = Callable[[tuple[int, ...]], np.ndarray]


def plain_beam(logprobs: Logprobs, ends: set[int]) -> list[tuple[float, tuple[int, ...]]]:
    """The textbook's beam search to the very end, by sorting everything."""
    beams: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    done: list[tuple[float, tuple[int, ...]]] = []
    for _ in range(TOKENS):
        every = []
        for total, tokens in beams:
            after = logprobs(tokens)
            likely = np.argsort(-after, kind="stable")[: WIDTH + len(ends)]
            every += [(total + float(after[t]), (*tokens, int(t))) for t in likely]
        every.sort(key=lambda e: -e[0])
        done += [(p / len(t), t) for p, t in every[:WIDTH] if t[-1] in ends]
        beams = [e for e in every if e[1][-1] not in ends][:WIDTH]
    done += [(p / len(t), t) for p, t in beams]
    return sorted(done, key=lambda e: -e[0])[:WIDTH]


def test_the_beams_are_those_of_a_plain_search_over_the_same_logits(real_bundle: Path) -> None:
    options = EngineOptions(slots=WIDTH, context_length=64, chunk_size=1)
    with Engine.load(real_bundle, options) as engine:
        prompt = tuple(engine.encode_prompt(PROMPT))
        found = engine.beam_search(PROMPT, BeamParams(width=WIDTH, max_tokens=TOKENS))

        def logprobs(tokens: tuple[int, ...]) -> np.ndarray:
            # In chunks of one token: a step of several rounds differently.
            exact = list(engine.score([*prompt, *tokens]))[-1][-1].astype(np.float64)
            exact -= exact.max()
            return exact - np.log(np.exp(exact).sum())

        expected = plain_beam(logprobs, set(engine.manifest.tokenizer.end_token_ids))
    scores = [score for score, _ in expected]
    assert [c.score for c in found] == pytest.approx(scores, abs=0.02)
    # Where two answers are as likely but for rounding, either may come first.
    assert {c.completion.token_ids for c in found} == {tokens for _, tokens in expected}
    assert scores == sorted(scores, reverse=True)
