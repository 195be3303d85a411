from __future__ import annotations

import dataclasses
from collections.abc import Sequence as Ordered

import pytest
from support.scripted_engine import GREEDY, TOKENIZER, RowsOf, make_engine
from test_admission import counting

from edge_runtime.engine.engine import Engine
from edge_runtime.engine.options import EngineOptions
from edge_runtime.engine.request import FinishReason
from edge_runtime.engine.sequence import Phase, Sequence
from edge_runtime.engine.sliding import slide
from edge_runtime.errors import InvalidParameterError
from edge_runtime.generation.params import SamplingParams
from edge_runtime.testing import ScriptedRunner

PARAMS = dataclasses.replace(GREEDY, max_tokens=40)


def sliding_engine(keep_tokens: int, *, slots: int = 1) -> tuple[Engine, ScriptedRunner]:
    runner = ScriptedRunner(counting, vocabulary_size=TOKENIZER.vocabulary_size)
    options = EngineOptions(context_full="slide", keep_tokens=keep_tokens, slots=slots)
    return make_engine(counting, context=16, options=options, runner=runner, cache=RowsOf(runner))


def test_the_first_tokens_and_the_newer_half_stay() -> None:
    sequence = Sequence(tuple(range(10)), SamplingParams())
    sequence.tokens += [10, 11]
    sequence.held_tokens = 11
    assert slide(sequence, 4) == 4
    assert sequence.tokens == [0, 1, 2, 3, 8, 9, 10, 11]
    assert (sequence.held_tokens, sequence.pending_tokens) == (4, 4)
    assert (sequence.phase, sequence.completion_tokens) == (Phase.PREFILL, 2)


def test_a_sliding_answer_goes_on_past_the_context_and_says_what_was_dropped() -> None:
    engine, runner = sliding_engine(2)
    completion = engine.generate("abcdefgh", PARAMS)
    assert completion.text == "".join(chr(ord("a") + (8 + i) % 26) for i in range(40))
    assert completion.finish_reason is FinishReason.LENGTH
    usage = completion.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (8, 40)
    held = usage.prompt_tokens + usage.completion_tokens - usage.dropped_tokens
    assert 0 < held <= 16
    assert engine.metrics.snapshot().counts.slid_tokens == usage.dropped_tokens
    reread = [s for s in runner.steps[1:] if s.token_ids.shape[1] > 1]
    assert reread and all(int(s.held[0]) == 2 for s in reread), "the kept tokens stay in the cache"


def test_without_sliding_the_answer_ends_and_nothing_is_dropped() -> None:
    engine, _ = make_engine(counting, context=16)
    usage = engine.generate("abcdefgh", PARAMS).usage
    assert (usage.completion_tokens, usage.dropped_tokens) == (8, 0)


@pytest.mark.parametrize("length", [15, 16])
def test_a_prompt_that_fills_the_context_slides_at_once(length: int) -> None:
    engine, _ = sliding_engine(1)
    completion = engine.generate("abcdefghijklmnop"[:length], PARAMS)
    assert completion.usage.completion_tokens == 40


def test_what_a_sequence_held_before_it_slid_is_not_offered_to_others() -> None:
    """The doubles' rows check every token: a stale prefix would show as a wrong answer."""
    engine, runner = sliding_engine(2, slots=2)
    tokens: dict[str, list[int]] = {"abcdefgh": [], "abcdefghijkl": []}

    def submit(prompt: str) -> None:
        engine.submit(
            TOKENIZER.encode(prompt), PARAMS, emit=lambda d: tokens[prompt].extend(d.token_ids)
        )  # type: ignore[union-attr]

    submit("abcdefgh")
    for _ in range(12):
        engine.step()
    before = len(runner.steps)
    submit("abcdefghijkl")
    while engine.has_work:
        engine.step()
    second: Ordered[int] = tokens["abcdefghijkl"]
    assert bytes(second[:3]) == b"mno"
    assert any(s.token_ids.shape == (1, 12) for s in runner.steps[before:]), "read from its start"


def test_drafts_go_on_after_a_slide() -> None:
    runner = ScriptedRunner(lambda seen: ord("ab"[seen[-1] == ord("a")]), vocabulary_size=258)
    options = EngineOptions(context_full="slide", keep_tokens=2, speculation="prompt-lookup")
    engine, _ = make_engine(counting, context=16, options=options, runner=runner)
    usage_text = engine.generate("abababab", PARAMS)
    assert usage_text.text == "ab" * 20
    assert usage_text.usage.accepted_draft_tokens > 0
    assert usage_text.usage.dropped_tokens > 0


def test_keeping_more_than_half_of_the_context_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="keep_tokens is 9"):
        sliding_engine(9)


def test_an_unknown_way_is_refused_by_value() -> None:
    with pytest.raises(InvalidParameterError, match="context_full is 'wrap'"):
        EngineOptions(context_full="wrap")
