"""The engine over scripted doubles: what is asked of the runner, and what comes out."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from support.scripted_engine import END, GREEDY, TOKENIZER, RowsOf, answering, make_engine

from edge_runtime.bundle import GenerationDefaults
from edge_runtime.engine.engine import Engine, EngineOptions
from edge_runtime.engine.model_runner import StepInput
from edge_runtime.engine.request import Delta, FinishReason
from edge_runtime.errors import (
    ChatTemplateError,
    EdgeRuntimeError,
    EmptyPromptError,
    InvalidParameterError,
    PromptTooLongError,
    RunError,
    UsageError,
)
from edge_runtime.generation.params import SamplingParams
from edge_runtime.testing import ScriptedRunner, replying
from edge_runtime.text.chat_template import ChatTemplate


def test_an_answer_ends_at_the_end_token_and_does_not_show_it() -> None:
    engine, _ = make_engine(answering("hi", "hello"))
    completion = engine.generate("hi", GREEDY)
    assert completion.text == "hello"
    assert completion.finish_reason is FinishReason.STOP
    assert completion.token_ids == (*TOKENIZER.encode("hello"), END)
    assert completion.usage.prompt_tokens == 2
    assert completion.usage.completion_tokens == 6


def test_the_three_rungs_agree() -> None:
    engine, _ = make_engine(answering("hi", "hello"))
    tokens = [d.token_id for d in engine.generate_tokens(TOKENIZER.encode("hi"), GREEDY)]
    deltas = list(engine.stream("hi", GREEDY))
    whole = engine.generate("hi", GREEDY)
    assert tuple(tokens) == tuple(t for d in deltas for t in d.token_ids) == whole.token_ids
    assert "".join(d.text for d in deltas) == whole.text
    assert [d.finish_reason for d in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].usage is not None


@pytest.mark.parametrize("chunk", [1, 3, 4, 100])
def test_a_prompt_is_read_in_chunks_and_only_its_last_one_wants_logits(chunk: int) -> None:
    engine, runner = make_engine(
        answering("0123456789", "x"), options=EngineOptions(chunk_size=chunk)
    )
    assert engine.generate("0123456789", GREEDY).text == "x"
    prefill = runner.steps[: -(-10 // chunk)]
    assert [s.token_ids.shape[1] for s in prefill[:-1]] == [chunk] * (len(prefill) - 1)
    assert sum(s.token_ids.shape[1] for s in prefill) == 10
    assert [s.logits_indices.shape[1] for s in prefill] == [0] * (len(prefill) - 1) + [1]


def test_max_tokens_ends_with_length_and_shows_what_was_held_back() -> None:
    engine, _ = make_engine(answering("p", "abc"))
    params = dataclasses.replace(GREEDY, max_tokens=2, stop=("bZ",))
    completion = engine.generate("p", params)
    assert (completion.text, completion.finish_reason) == ("ab", FinishReason.LENGTH)


def test_a_full_context_ends_with_length() -> None:
    engine, _ = make_engine(answering("12345", "abcdefgh"), context=8)
    completion = engine.generate("12345", GREEDY)
    assert (completion.text, completion.finish_reason) == ("abc", FinishReason.LENGTH)


def test_a_prompt_that_fills_the_context_gets_one_token() -> None:
    engine, _ = make_engine(answering("12345", "abc"), context=5)
    completion = engine.generate("12345", GREEDY)
    assert (completion.text, completion.finish_reason) == ("a", FinishReason.LENGTH)


def test_a_stop_string_over_several_tokens_is_cut_exactly() -> None:
    engine, _ = make_engine(answering("p", "one END two"))
    completion = engine.generate("p", dataclasses.replace(GREEDY, stop=("END",)))
    assert (completion.text, completion.finish_reason) == ("one ", FinishReason.STOP)
    assert completion.token_ids == tuple(TOKENIZER.encode("one END"))


def test_stop_token_ids_end_generation() -> None:
    engine, _ = make_engine(answering("p", "abc"))
    completion = engine.generate("p", dataclasses.replace(GREEDY, stop_token_ids=(ord("b"),)))
    assert (completion.text, completion.finish_reason) == ("a", FinishReason.STOP)


def test_ignore_eos_goes_past_the_end_token() -> None:
    script = replying(TOKENIZER.encode("p"), [END, ord("a"), ord("b"), 0])
    engine, _ = make_engine(script)
    completion = engine.generate("p", dataclasses.replace(GREEDY, ignore_eos=True, max_tokens=3))
    assert (completion.text, completion.finish_reason) == ("ab", FinishReason.LENGTH)


def test_characters_split_over_tokens_come_whole() -> None:
    engine, _ = make_engine(answering("p", "日本🎉é"))
    texts = [d.text for d in engine.stream("p", GREEDY)]
    assert "".join(texts) == "日本🎉é"
    assert all("\ufffd" not in t for t in texts)


def test_a_character_cut_by_max_tokens_is_left_out() -> None:
    engine, _ = make_engine(answering("p", "a日"))
    assert engine.generate("p", dataclasses.replace(GREEDY, max_tokens=3)).text == "a"


def test_the_next_turn_evaluates_only_what_is_new() -> None:
    engine, runner = make_engine(answering("hi", "hello"))
    engine.generate("hi", GREEDY)
    before = len(runner.steps)
    runner._next_token = answering("hihello+", "ok")
    completion = engine.generate("hihello+", GREEDY)
    assert completion.text == "ok"
    assert completion.usage.cached_tokens == len("hihello")
    assert runner.steps[before].token_ids.tolist() == [TOKENIZER.encode("+")]


def test_a_prompt_that_is_fully_held_evaluates_one_token() -> None:
    engine, runner = make_engine(answering("hi", "hello"))
    first = engine.generate("hi", GREEDY)
    before = len(runner.steps)
    again = engine.generate("hi", GREEDY)
    assert again.token_ids == first.token_ids
    assert again.usage.cached_tokens == 1
    assert runner.steps[before].token_ids.shape == (1, 1)


def test_reset_forgets_what_was_held() -> None:
    engine, _ = make_engine(answering("hi", "hello"))
    engine.generate("hi", GREEDY)
    engine.reset()
    assert engine.memory().cache_tokens == 0
    assert engine.generate("hi", GREEDY).usage.cached_tokens == 0


def test_an_empty_prompt_is_refused() -> None:
    engine, _ = make_engine(answering("", ""))
    with pytest.raises(EmptyPromptError):
        engine.generate("", GREEDY)


def test_a_prompt_longer_than_the_context_names_both_counts() -> None:
    engine, runner = make_engine(answering("", ""), context=4)
    with pytest.raises(PromptTooLongError, match=r"5 tokens.* 4"):
        engine.generate("12345", GREEDY)
    assert not runner.steps


def test_a_token_outside_the_vocabulary_is_refused_by_value() -> None:
    engine, _ = make_engine(answering("", ""))
    with pytest.raises(InvalidParameterError, match="999"):
        list(engine.generate_tokens([1, 999], GREEDY))


def test_a_conversation_without_a_template_says_what_to_do() -> None:
    engine, _ = make_engine(answering("", ""))
    with pytest.raises(ChatTemplateError, match="scripted") as caught:
        engine.generate([{"role": "user", "content": "hi"}], GREEDY)
    assert "--raw" in str(caught.value.hint)


def test_a_conversation_goes_through_the_template() -> None:
    template = ChatTemplate(
        "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}>", special_tokens={}
    )
    engine, _ = make_engine(answering("[user]hi>", "yo"), chat_template=template)
    assert engine.generate([{"role": "user", "content": "hi"}], GREEDY).text == "yo"


def test_the_models_own_generation_defaults_apply_where_the_caller_is_silent() -> None:
    engine, _ = make_engine(answering("p", "a"), defaults=GenerationDefaults(temperature=0.3))
    assert engine.default_params().temperature == 0.3
    assert engine.default_params(temperature=0.0).temperature == 0.0
    assert engine.default_params().top_p == 1.0


def test_a_failed_run_fails_its_request_and_the_engine_goes_on() -> None:
    size = TOKENIZER.vocabulary_size
    runner = ScriptedRunner(answering("hi", "hello"), vocabulary_size=size, fail_at=(2,))
    engine, _ = make_engine(answering("hi", "hello"), runner=runner)
    with pytest.raises(RunError, match="scripted to fail"):
        engine.generate("hi", GREEDY)
    assert not engine.has_work
    assert engine.generate("hi", GREEDY).text == "hello"


def test_leaving_a_stream_early_frees_the_slot() -> None:
    engine, _ = make_engine(answering("hi", "hello"))
    stream = engine.stream("hi", GREEDY)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert not engine.has_work
    assert engine.generate("hi", GREEDY).text == "hello"


def test_cancel_inside_a_run_stops_that_run() -> None:
    """A cancel that comes while the only request's chunk is evaluated terminates the run."""
    size = TOKENIZER.vocabulary_size
    holder: list[Engine] = []
    sequences: list[object] = []

    def cancel_during(run: int) -> None:
        if run == 2:
            holder[0].cancel(sequences[0])  # type: ignore[arg-type]

    prompt = TOKENIZER.encode("0123456789")
    runner = ScriptedRunner(
        answering("0123456789", "x"), vocabulary_size=size, before_run=cancel_during
    )
    engine, _ = make_engine(answering("", ""), runner=runner, options=EngineOptions(chunk_size=2))
    holder.append(engine)
    deltas: list[Delta | EdgeRuntimeError] = []
    sequences.append(engine.submit(prompt, GREEDY, emit=deltas.append))
    while engine.has_work:
        engine.step()
    assert len(runner.steps) == 2
    assert [d.finish_reason for d in deltas if isinstance(d, Delta)] == [FinishReason.CANCELLED]


def test_a_terminated_run_is_tried_again_for_those_who_were_not_cancelled() -> None:
    size = TOKENIZER.vocabulary_size
    holder: list[ScriptedRunner] = []

    def terminate_once(run: int) -> None:
        if run == 2:
            holder[0].terminate()

    runner = ScriptedRunner(
        answering("hi", "hello"), vocabulary_size=size, before_run=terminate_once
    )
    holder.append(runner)
    engine, _ = make_engine(answering("", ""), runner=runner)
    assert engine.generate("hi", GREEDY).text == "hello"


def test_logprobs_are_of_the_raw_distribution() -> None:
    engine, _ = make_engine(answering("p", "a"))
    completion = engine.generate("p", dataclasses.replace(GREEDY, logprobs=1, max_tokens=1))
    expected = 1.0 - np.log(np.e + TOKENIZER.vocabulary_size - 1)
    assert completion.logprobs[0].chosen.token_id == ord("a")
    assert completion.logprobs[0].chosen.logprob == pytest.approx(expected)


def test_sequences_in_several_slots_decode_in_one_step() -> None:
    def script(seen: Sequence[int]) -> int:
        return seen[-1] + 1 if seen[-1] < ord("e") else END

    engine, runner = make_engine(script, options=EngineOptions(slots=2))
    texts: dict[str, str] = {"a": "", "c": ""}
    for prompt in texts:

        def emit(delta: Delta | EdgeRuntimeError, prompt: str = prompt) -> None:
            assert isinstance(delta, Delta)
            texts[prompt] += delta.text

        engine.submit(TOKENIZER.encode(prompt), GREEDY, emit=emit)
    while engine.has_work:
        engine.step()
    assert texts == {"a": "bcde", "c": "de"}
    assert any(step.token_ids.shape == (2, 1) for step in runner.steps)


def test_a_stop_string_that_waited_for_a_longer_one_counts_at_the_end() -> None:
    engine, _ = make_engine(answering("p", "xabz"))
    params = dataclasses.replace(GREEDY, stop=("ab", "abc"), max_tokens=3)
    completion = engine.generate("p", params)
    assert (completion.text, completion.finish_reason) == ("x", FinishReason.STOP)


def test_what_is_wrong_with_a_prompt_is_said_before_anything_is_read() -> None:
    engine, _ = make_engine(answering("", ""), context=4)
    with pytest.raises(EmptyPromptError):
        engine.stream("")
    with pytest.raises(PromptTooLongError):
        engine.generate_tokens(range(5))
    with pytest.raises(EmptyPromptError):
        engine.score([])
    assert not engine.has_work


def test_token_ids_are_a_prompt_on_every_rung() -> None:
    engine, _ = make_engine(answering("hi", "yo"))
    assert engine.generate(TOKENIZER.encode("hi"), GREEDY).text == "yo"
    assert engine.generate(np.array(TOKENIZER.encode("hi")), GREEDY).text == "yo"  # type: ignore[arg-type]


@pytest.mark.parametrize("prompt", ["hi", [1.5], [None], 7, None])
def test_what_is_no_list_of_token_ids_is_refused(prompt: object) -> None:
    engine, _ = make_engine(answering("", ""))
    with pytest.raises(InvalidParameterError):
        engine.generate_tokens(prompt)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "values",
    [
        {"chunk_size": 0},
        {"slots": -1},
        {"context_length": "2048"},
        {"threads": 1.5},
        {"chunk_size": None},
        {"slots": True},
    ],
)
def test_options_are_checked_by_name_and_value(values: dict[str, object]) -> None:
    ((name, value),) = values.items()
    with pytest.raises(InvalidParameterError, match=f"{name} is {value!r}"):
        EngineOptions(**values)  # type: ignore[arg-type]


def test_a_cancel_just_before_the_run_does_not_wait_for_its_end() -> None:
    holder: list[Engine] = []
    sequences: list[object] = []

    class Cache:
        def release(self, slot: int, *, keep_tokens: int) -> None:
            """Called between the look for cancelled requests and the run."""
            holder[0].cancel(sequences[0])  # type: ignore[arg-type]

    engine, runner = make_engine(answering("hi", "x"), cache=Cache())
    holder.append(engine)
    deltas: list[Delta | EdgeRuntimeError] = []
    sequences.append(engine.submit(TOKENIZER.encode("hi"), GREEDY, emit=deltas.append))
    while engine.has_work:
        engine.step()
    assert not runner.steps
    assert [d.finish_reason for d in deltas if isinstance(d, Delta)] == [FinishReason.CANCELLED]


def test_a_request_with_wrong_parameters_leaves_nothing_behind() -> None:
    engine, _ = make_engine(answering("hi", "hello"))
    with pytest.raises(InvalidParameterError, match="999"):
        engine.generate("hi", SamplingParams(logit_bias={999: 1.0}))
    assert not engine.has_work
    assert engine.generate("hi", GREEDY).text == "hello"


# Scoring


def test_scoring_gives_logits_at_every_position() -> None:
    engine, runner = make_engine(
        replying([], TOKENIZER.encode("abcdef")), options=EngineOptions(chunk_size=2)
    )
    logits = np.concatenate(list(engine.score(TOKENIZER.encode("abcde"))))
    assert bytes(logits.argmax(axis=1).tolist()) == b"bcdef"
    assert [step.token_ids.shape[1] for step in runner.steps] == [2, 2, 1]


def test_scoring_is_refused_while_a_request_is_in_progress() -> None:
    engine, _ = make_engine(answering("hi", "hello"))
    stream = engine.stream("hi", GREEDY)
    next(stream)
    with pytest.raises(UsageError, match="in progress"):
        engine.score([1, 2])
    stream.close()


def test_a_cancel_that_came_too_late_does_not_stop_a_scoring() -> None:
    engine, runner = make_engine(replying([], TOKENIZER.encode("abc")))
    runner.terminate()
    assert len(np.concatenate(list(engine.score(TOKENIZER.encode("ab"))))) == 2


# Closing


def test_closing_twice_is_harmless() -> None:
    engine, _ = make_engine(answering("hi", "hello"))
    with engine:
        engine.close()


def test_a_closed_engine_refuses_everything_with_one_error() -> None:
    engine, runner = make_engine(answering("hi", "hello"))
    stream = engine.stream("hi", GREEDY)
    next(stream)
    evaluated = len(runner.steps)
    engine.close()
    with pytest.raises(RunError, match="closed"):
        list(stream)
    with pytest.raises(RunError, match="closed"):
        engine.generate("hi", GREEDY)
    with pytest.raises(RunError, match="closed"):
        next(engine.score([1, 2]))
    assert len(runner.steps) == evaluated
    assert not engine.has_work


def test_closing_waits_for_the_run_in_another_thread_and_stops_it() -> None:
    """Otherwise the memory that the run writes to would be gone."""
    running, closed_during_run = threading.Event(), threading.Event()

    class Runner(ScriptedRunner):
        def terminate(self) -> None:
            super().terminate()
            stopped.set()

        def close(self) -> None:
            if not finished.is_set():
                closed_during_run.set()

    stopped, finished = threading.Event(), threading.Event()

    def before_run(number: int) -> None:
        running.set()
        assert stopped.wait(5), "the run was not stopped"
        finished.set()

    size = TOKENIZER.vocabulary_size
    runner = Runner(answering("hi", "x"), vocabulary_size=size, before_run=before_run)
    engine, _ = make_engine(answering("", ""), runner=runner)
    errors: list[Delta | EdgeRuntimeError] = []
    engine.submit(TOKENIZER.encode("hi"), GREEDY, emit=errors.append)

    def work() -> None:
        while engine.has_work:
            engine.step()

    thread = threading.Thread(target=work)
    thread.start()
    assert running.wait(5)
    engine.close()
    thread.join(5)
    assert not closed_during_run.is_set()
    assert [type(e) for e in errors] == [RunError]


def test_a_prefix_that_a_running_sequence_holds_is_copied_and_not_evaluated() -> None:
    system = "You answer in one word. "
    runner = ScriptedRunner(
        lambda seen: END if seen[-1] == ord("x") else ord("x"),
        vocabulary_size=TOKENIZER.vocabulary_size,
    )
    rows = RowsOf(runner)
    options = EngineOptions(slots=2)
    engine, _ = make_engine(answering("", ""), runner=runner, options=options, cache=rows)
    cached: list[int] = []

    def emit(delta: Delta | EdgeRuntimeError) -> None:
        assert isinstance(delta, Delta)
        if delta.usage is not None:
            cached.append(delta.usage.cached_tokens)

    engine.submit(TOKENIZER.encode(system + "Sky?"), GREEDY, emit=emit)
    engine.step()
    engine.submit(TOKENIZER.encode(system + "Sea?"), GREEDY, emit=emit)
    while engine.has_work:
        engine.step()
    shared = len(system) + len("S")
    assert rows.copies == [(0, 1, shared)]
    assert sorted(cached) == [0, shared]
    evaluated = [int(s.lengths[0]) for s in runner.steps if s.token_ids.shape[1] > 1]
    assert evaluated == [len(system) + len("Sky?"), len("ea?")]


def test_a_short_shared_prefix_is_not_worth_copying() -> None:
    runner = ScriptedRunner(lambda seen: ord("x"), vocabulary_size=TOKENIZER.vocabulary_size)
    rows = RowsOf(runner)
    options = EngineOptions(slots=2)
    engine, _ = make_engine(answering("", ""), runner=runner, options=options, cache=rows)
    params = dataclasses.replace(GREEDY, max_tokens=3)
    for prompt in ("Hi Ann", "Hi Bob"):
        engine.submit(TOKENIZER.encode(prompt), params, emit=lambda delta: None)
        engine.step()
    while engine.has_work:
        engine.step()
    assert rows.copies == []


def test_a_failed_batch_fails_its_requests_and_whoever_waits_is_served() -> None:
    size = TOKENIZER.vocabulary_size
    runner = ScriptedRunner(lambda seen: ord("x"), vocabulary_size=size, fail_at=(3,))
    options = EngineOptions(slots=2)
    engine, _ = make_engine(answering("", ""), runner=runner, options=options)
    params = dataclasses.replace(GREEDY, max_tokens=4)
    ends: dict[str, object] = {}
    for prompt in ("a", "b", "c"):

        def emit(delta: Delta | EdgeRuntimeError, prompt: str = prompt) -> None:
            ends[prompt] = delta if isinstance(delta, RunError) else delta.finish_reason  # type: ignore[union-attr]

        engine.submit(TOKENIZER.encode(prompt), params, emit=emit)
    while engine.has_work:
        engine.step()
    assert runner.steps[2].token_ids.shape == (2, 1), "both were in the run that failed"
    assert isinstance(ends["a"], RunError) and isinstance(ends["b"], RunError)
    assert ends["c"] is FinishReason.LENGTH


def test_a_step_that_runs_out_of_memory_fails_its_request_alone() -> None:
    class Runner(ScriptedRunner):
        def run(self, step: StepInput) -> NDArray[np.float32]:
            if not self.steps:
                self.steps.append(step)
                raise MemoryError
            return super().run(step)

    runner = Runner(answering("hi", "hello"), vocabulary_size=TOKENIZER.vocabulary_size)
    engine, _ = make_engine(answering("", ""), runner=runner)
    with pytest.raises(RunError, match="out of memory"):
        engine.generate("hi", GREEDY)
    assert engine.generate("hi", GREEDY).text == "hello"
