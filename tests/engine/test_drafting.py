"""Drafts in the engine: fewer steps, and the same answers to the last logprob."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from support.scripted_engine import END, GREEDY, TOKENIZER, answering, make_engine
from support.table_runner import TableRunner

from edge_runtime.engine.engine import Engine, EngineOptions
from edge_runtime.engine.metrics import StepKind
from edge_runtime.engine.request import Completion, Delta, FinishReason
from edge_runtime.errors import EdgeRuntimeError, InvalidParameterError, RunError
from edge_runtime.generation.params import SamplingParams
from edge_runtime.guidance.constraint import Mask, mask_of
from edge_runtime.testing import ScriptedRunner

V = TOKENIZER.vocabulary_size
WORDS = "the lamp of the tower was lit. "
OFF = EngineOptions(speculation="off")
ON = EngineOptions(speculation="prompt-lookup")


def test_a_text_that_repeats_itself_takes_fewer_steps() -> None:
    texts, steps = [], []
    for options in (OFF, ON):
        engine, runner = make_engine(answering(WORDS, WORDS * 2), context=200, options=options)
        texts.append(engine.generate(WORDS, GREEDY).text)
        steps.append(len(runner.steps))
    assert texts == [WORDS * 2] * 2
    assert steps[0] == 1 + len(WORDS) * 2
    assert steps[1] < steps[0] / 2


def test_drafts_are_counted_for_the_request_and_for_the_engine() -> None:
    engine, runner = make_engine(answering(WORDS, WORDS * 2), context=200, options=ON)
    completion = engine.generate(WORDS, GREEDY)
    usage = completion.usage
    evaluated = sum(step.token_ids.size for step in runner.steps) - len(WORDS)
    assert usage.draft_tokens == evaluated - (len(runner.steps) - 1)
    assert 0 < usage.accepted_draft_tokens <= usage.draft_tokens
    # Each step but the prompt's last chunk gives one token and those that were drafted rightly.
    assert usage.completion_tokens == len(runner.steps) + usage.accepted_draft_tokens
    metrics = engine.metrics.snapshot()
    assert metrics.counts.draft_tokens_proposed == usage.draft_tokens
    assert metrics.counts.draft_tokens_accepted == usage.accepted_draft_tokens
    assert metrics.steps[StepKind.VERIFY] > 0


def test_a_text_without_repetition_is_decoded_as_without_drafts() -> None:
    text = "abcdefghijklmnopqrstuvwxyz"
    engine, runner = make_engine(answering("0", text), options=ON)
    completion = engine.generate("0", GREEDY)
    assert (completion.text, completion.usage.draft_tokens) == (text, 0)
    assert all(step.token_ids.size == 1 for step in runner.steps)


def table_engine(options: EngineOptions, *, seed: int, **shape: Any) -> tuple[Engine, TableRunner]:
    runner = TableRunner(
        vocabulary_size=V, alphabet=[*range(97, 105), END], seed=seed, **({"spread": 3.0} | shape)
    )
    engine, _ = make_engine(lambda seen: 0, context=120, options=options, runner=runner)
    return engine, runner


def answers(params: SamplingParams, *, seed: int) -> tuple[Completion, Completion]:
    """With drafts and without, on the same model."""
    found = []
    for options in (ON, OFF):
        engine, _ = table_engine(options, seed=seed)
        found.append(engine.generate("abcdefgh" * 3, params))
    return found[0], found[1]


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.0},
        {"temperature": 0.6},
        {"temperature": 1.0, "top_p": 0.9, "min_p": 0.01},
        {"temperature": 0.7, "top_k": 4, "typical_p": 0.95},
        {"temperature": 0.5, "repetition_penalty": 1.1},
        {"temperature": 0.5, "presence_penalty": 0.5, "frequency_penalty": 0.1},
        {"temperature": 0.5, "logit_bias": {98: 1.0, 99: -2.0}},
        {"temperature": 0.0, "repetition_penalty": 1.05, "logprobs": 3},
        {"temperature": 0.7, "logprobs": 0},
        {"temperature": 0.5, "stop": ("ab", "hg", "ccc")},
        {"temperature": 0.5, "stop_token_ids": (100,)},
        {"temperature": 0.4, "ignore_eos": True},
    ],
    ids=str,
)
def test_answers_are_the_same_with_and_without_drafts(changes: dict[str, Any]) -> None:
    drafted = 0
    for seed in range(12):
        params = SamplingParams(seed=seed, **({"max_tokens": 60 + seed} | changes))
        ours, theirs = answers(params, seed=seed)
        drafted += ours.usage.accepted_draft_tokens
        assert theirs.usage.draft_tokens == 0
        assert ours.token_ids == theirs.token_ids
        assert ours.logprobs == theirs.logprobs
        assert (ours.text, ours.finish_reason) == (theirs.text, theirs.finish_reason)
    assert drafted > 0, "nothing was drafted, so nothing was shown"


@pytest.mark.parametrize("most", [1, 2, 3, 50])
def test_the_answer_ends_at_max_tokens_whatever_was_drafted(most: int) -> None:
    engine, _ = make_engine(answering("abab" * 8, "ab" * 40), context=100, options=ON)
    completion = engine.generate("abab" * 8, dataclasses.replace(GREEDY, max_tokens=most))
    assert completion.token_ids == tuple(TOKENIZER.encode("ab" * 25))[:most]
    assert completion.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("context", [33, 34, 35, 40, 47])
def test_no_draft_goes_past_the_context(context: int) -> None:
    prompt = "abab" * 8
    engine, runner = make_engine(answering(prompt, "ab" * 40), context=context, options=ON)
    completion = engine.generate(prompt, GREEDY)
    assert completion.finish_reason is FinishReason.LENGTH
    assert len(prompt) + len(completion.token_ids) == context
    assert all(step.held[0] + step.lengths[0] <= context for step in runner.steps)


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_a_step_with_drafts_is_no_longer_than_a_chunk(chunk: int) -> None:
    engine, runner = make_engine(
        answering(WORDS, WORDS * 2), context=200, options=dataclasses.replace(ON, chunk_size=chunk)
    )
    assert engine.generate(WORDS, GREEDY).text == WORDS * 2
    assert max(step.token_ids.size for step in runner.steps) == chunk


def test_the_next_turn_starts_from_what_was_accepted() -> None:
    """The runner checks that a slot holds what the engine says it holds."""
    first = "one two one two one two "
    engine, runner = make_engine(answering(first, "one two three"), context=200, options=ON)
    completion = engine.generate(first, GREEDY)
    assert completion.usage.draft_tokens > completion.usage.accepted_draft_tokens > 0
    then = first + "one two three, and "
    runner._next_token = answering(then, "four")
    following = engine.generate(then, GREEDY)
    assert following.text == "four"
    assert following.usage.cached_tokens == len(first + "one two three")


def run_all(engine: Engine, prompts: list[str], params: SamplingParams) -> list[str]:
    texts: list[list[Delta | EdgeRuntimeError]] = [[] for _ in prompts]
    for prompt, deltas in zip(prompts, texts, strict=True):
        engine.submit(TOKENIZER.encode(prompt), params, emit=deltas.append)
    while engine.has_work:
        engine.step()
    assert all(isinstance(d, Delta) for deltas in texts for d in deltas)
    return ["".join(d.text for d in deltas if isinstance(d, Delta)) for deltas in texts]


def test_sequences_that_decode_together_take_one_token_a_step() -> None:
    engine, runner = table_engine(dataclasses.replace(ON, slots=2), seed=1)
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    run_all(engine, ["abab" * 4, "cdcd" * 4], params)
    together = [s for s in runner.steps if len(s.token_ids) == 2 and s.held.all()]
    assert len(together) > 30
    assert {step.token_ids.shape[1] for step in together} == {1}


def test_the_one_that_is_left_is_drafted_for() -> None:
    engine, runner = table_engine(dataclasses.replace(ON, slots=2), seed=1)
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    alone = engine.generate("abab" * 4, params)
    engine.reset()
    before = len(runner.steps)
    short = dataclasses.replace(params, max_tokens=5)
    deltas: list[Delta | EdgeRuntimeError] = []
    engine.submit(TOKENIZER.encode("abab" * 4), params, emit=deltas.append)
    engine.submit(TOKENIZER.encode("cd"), short, emit=lambda delta: None)
    while engine.has_work:
        engine.step()
    ids = [t for d in deltas if isinstance(d, Delta) for t in d.token_ids]
    assert tuple(ids) == alone.token_ids
    shapes = [step.token_ids.shape for step in runner.steps[before:]]
    assert (2, 1) in shapes
    assert any(rows == 1 and count > 1 for rows, count in shapes[shapes.index((2, 1)) :])


def test_a_verifying_step_that_fails_fails_its_request_alone() -> None:
    prompt = "abab" * 8
    script = answering(prompt, "ab" * 40)
    runner = ScriptedRunner(script, vocabulary_size=V, fail_at=(3,))
    engine, _ = make_engine(script, context=100, options=ON, runner=runner)
    with pytest.raises(RunError, match="scripted"):
        engine.generate(prompt, GREEDY)
    assert runner.steps[2].token_ids.size > 1, "the step that failed carried drafts"
    assert len(engine.generate(prompt, dataclasses.replace(GREEDY, max_tokens=9)).token_ids) == 9


def test_a_verifying_step_that_was_stopped_is_done_again() -> None:
    prompt = "abab" * 8
    script = answering(prompt, "ab" * 40)

    def stop_one(number: int) -> None:
        if number == 3:
            runner.terminate()

    runner = ScriptedRunner(script, vocabulary_size=V, before_run=stop_one)
    engine, _ = make_engine(script, context=100, options=ON, runner=runner)
    assert engine.generate(prompt, dataclasses.replace(GREEDY, max_tokens=20)).text == "ab" * 10
    assert runner.steps[2].token_ids.tolist() == runner.steps[3].token_ids.tolist()


def test_another_way_of_speculation_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="speculation is 'magic'"):
        EngineOptions(speculation="magic")


def test_a_context_that_slides_is_drafted_for_as_well() -> None:
    params = SamplingParams(temperature=0.3, seed=1, max_tokens=150, ignore_eos=True)
    texts = []
    for options in (OFF, ON):
        options = dataclasses.replace(options, context_full="slide", keep_tokens=4)
        engine, _ = table_engine(options, seed=2)
        completion = engine.generate("abcdefgh" * 6, params)
        texts.append(completion.text)
    assert completion.usage.dropped_tokens > 0
    assert completion.usage.accepted_draft_tokens > 0
    assert texts[0] == texts[1]


class Alternating:
    """A constraint: small letters of which every other one is a vowel, twelve in all."""

    def __init__(self) -> None:
        self._accepted = 0

    def allowed_tokens(self) -> Mask | None:
        letters = "ae" if self._accepted % 2 else "bcdfgh"
        return mask_of(TOKENIZER.encode(letters), V)

    def accept(self, token_id: int) -> None:
        assert chr(token_id) in ("ae" if self._accepted % 2 else "bcdfgh")
        self._accepted += 1

    @property
    def is_complete(self) -> bool:
        return self._accepted == 12


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_drafts_are_held_to_a_constraint_as_other_tokens_are(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=4, max_tokens=50)
    texts, accepted = [], 0
    for options in (OFF, ON):
        engine, _ = table_engine(options, seed=2)
        deltas: list[Delta | EdgeRuntimeError] = []
        prompt = TOKENIZER.encode("bacabaca" * 4)
        sequence = engine.submit(prompt, params, emit=deltas.append, constraint=Alternating())
        while engine.has_work:
            engine.step()
        texts.append("".join(d.text for d in deltas if isinstance(d, Delta)))
        accepted = sequence.accepted_draft_tokens
    assert texts[0] == texts[1]
    assert len(texts[0]) == 12
    assert accepted > 0
