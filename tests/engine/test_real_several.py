"""Several answers on the real model: the prompt is read once, and the likeliest come first."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_runtime.engine.engine import Engine, EngineOptions
from edge_runtime.generation.params import SamplingParams

pytestmark = pytest.mark.model

QUESTION = [{"role": "user", "content": "Name the capital city of France."}]


def test_several_answers_share_the_reading_of_the_prompt(real_bundle: Path) -> None:
    with Engine.load(real_bundle, EngineOptions(slots=3, context_length=128)) as engine:
        params = SamplingParams(temperature=1.0, top_p=0.95, seed=11, max_tokens=10, logprobs=0)
        candidates = engine.generate_several(QUESTION, params, n=2, best_of=4)
        counts = engine.metrics.snapshot().counts
        prompt_tokens = candidates[0].completion.usage.prompt_tokens
        assert counts.cached_tokens == 3 * (prompt_tokens - 1)
        assert counts.requests_submitted == 4
        scores = [c.score for c in candidates]
        assert scores == sorted(scores, reverse=True)
        best = candidates[0].completion
        assert len(best.logprobs) == len(best.token_ids)
