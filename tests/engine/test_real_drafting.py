"""Drafts on the real model: the same answer in fewer steps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from edge_runtime.engine.engine import Engine, EngineOptions
from edge_runtime.engine.metrics import StepKind
from edge_runtime.engine.step_input import scoring_input
from edge_runtime.generation.params import SamplingParams

pytestmark = pytest.mark.model

PASSAGE = (
    "The lighthouse was built in 1847 after eleven ships had been lost on the rocks in a single "
    "winter. Its tower is forty-two metres high and made of grey granite."
)
QUOTE = [{"role": "user", "content": f"Repeat this text word for word:\n\n{PASSAGE}"}]
GREEDY = SamplingParams(temperature=0.0, max_tokens=36)
CONTEXT = 256


@pytest.fixture(scope="module")
def drafting(real_bundle: Path) -> Iterator[Engine]:
    options = EngineOptions(speculation="prompt-lookup", context_length=CONTEXT)
    with Engine.load(real_bundle, options) as engine:
        yield engine


def test_a_quoting_answer_is_the_same_in_fewer_steps(drafting: Engine, real_bundle: Path) -> None:
    ids = drafting.encode_chat(QUOTE)
    found = drafting.generate(ids, GREEDY)
    steps = drafting.metrics.snapshot().steps
    assert found.usage.accepted_draft_tokens >= 12
    assert steps[StepKind.DECODE] + steps[StepKind.VERIFY] < 0.7 * len(found.token_ids)
    with Engine.load(real_bundle, EngineOptions(chunk_size=1, context_length=CONTEXT)) as single:
        expected = single.generate(ids, GREEDY)
        assert expected.usage.draft_tokens == 0
        assert_same_or_within_rounding(single, drafting, ids, expected.token_ids, found.token_ids)


def assert_same_or_within_rounding(
    single: Engine,
    several: Engine,
    prompt_ids: list[int],
    expected: Sequence[int],
    found: Sequence[int],
) -> None:
    """Equal tokens, or a parting that steps of one token and of several would each take.

    With integer activations the two round differently, and a difference of one in the last place of
    one layer is one in the logits' first decimal after thirty. What they differ by is measured, on
    this very text: how far apart the two likeliest tokens are, step by step.
    """
    pairs = zip(expected, found, strict=False)
    same = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
    if same == len(expected) == len(found):
        return
    text = [*prompt_ids, *expected[:same]]
    gaps = []
    for engine in (single, several):
        logits = np.concatenate(list(engine.score(text)))
        likeliest, next_to = np.sort(logits, axis=1)[:, -1], np.sort(logits, axis=1)[:, -2]
        gaps.append(likeliest - next_to)
    rounding = float(np.abs(gaps[0] - gaps[1]).max())
    assert gaps[0][-1] <= rounding, f"parted after {same} tokens, {gaps[0][-1]} apart"


def test_wrong_drafts_leave_nothing_in_the_cache(drafting: Engine) -> None:
    ids = drafting.encode_prompt(PASSAGE)[:20]
    wrong = [(token + 1000) % 40000 for token in ids]
    logits = []
    for drafts in (ids[17:19], wrong[17:19]):
        drafting.reset()
        for start, tokens in ((0, ids[:16]), (16, [ids[16], *drafts]), (17, ids[17:20])):
            found = drafting._executor.run(scoring_input(tokens, held=start))
        logits.append(found.copy())
    np.testing.assert_array_equal(logits[0], logits[1])
    drafting.reset()
