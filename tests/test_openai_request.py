from __future__ import annotations

from typing import Any

import pytest

from edge_runtime.api.openai_error import RequestRefusedError, error_reply
from edge_runtime.api.openai_request import (
    ChatRequest,
    CompletionRequest,
    read_chat_request,
    read_completion_request,
)
from edge_runtime.bundle import GenerationDefaults
from edge_runtime.errors import (
    ChatTemplateError,
    EmptyPromptError,
    PromptTooLongError,
    RunError,
    TokenizerError,
)
from edge_runtime.generation.params import SamplingParams

NO_ADVICE = GenerationDefaults()
MESSAGES = [{"role": "user", "content": "Hi"}]


def chat(**fields: Any) -> ChatRequest:
    return read_chat_request({"messages": MESSAGES, **fields}, NO_ADVICE)


def completion(**fields: Any) -> CompletionRequest:
    return read_completion_request({"prompt": "Hi", **fields}, NO_ADVICE)


def refusal(**fields: Any) -> RequestRefusedError:
    with pytest.raises(RequestRefusedError) as caught:
        chat(**fields)
    return caught.value


# Sampling


def test_a_silent_request_takes_openais_defaults():
    assert chat() == ChatRequest(tuple(MESSAGES), SamplingParams(), {}, stream=False)
    assert completion() == CompletionRequest("Hi", SamplingParams(max_tokens=16), stream=False)


def test_the_makers_advice_comes_before_defaults_and_after_the_request():
    advice = GenerationDefaults(temperature=0.3, top_k=7)
    params = read_chat_request({"messages": MESSAGES, "top_k": 9}, advice).params
    assert (params.temperature, params.top_k) == (0.3, 9)


@pytest.mark.parametrize(
    "field, value, parameter, kept",
    [
        ("temperature", 0, "temperature", 0),
        ("top_p", 0.5, "top_p", 0.5),
        ("top_k", 5, "top_k", 5),
        ("top_k", -1, "top_k", 0),
        ("min_p", 0.1, "min_p", 0.1),
        ("typical_p", 0.9, "typical_p", 0.9),
        ("repeat_penalty", 1.1, "repetition_penalty", 1.1),
        ("repetition_penalty", 1.1, "repetition_penalty", 1.1),
        ("presence_penalty", -1, "presence_penalty", -1),
        ("frequency_penalty", 0.5, "frequency_penalty", 0.5),
        ("seed", 42, "seed", 42),
        ("stop", "END", "stop", ("END",)),
        ("stop", ["a", "b"], "stop", ("a", "b")),
        ("stop_token_ids", [3], "stop_token_ids", (3,)),
        ("ignore_eos", True, "ignore_eos", True),
        ("max_tokens", 5, "max_tokens", 5),
        ("max_completion_tokens", 5, "max_tokens", 5),
        ("n_predict", 5, "max_tokens", 5),
        ("n_predict", -1, "max_tokens", None),
        ("logit_bias", {"7": -100, "8": 0.5}, "logit_bias", {7: -100, 8: 0.5}),
    ],
)
def test_every_sampling_field_arrives(field: str, value: Any, parameter: str, kept: Any):
    assert getattr(chat(**{field: value}).params, parameter) == kept
    assert getattr(completion(**{field: value}).params, parameter) == kept


@pytest.mark.parametrize(
    "fields, reported",
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
        ({"logprobs": False, "top_logprobs": 0}, None),
    ],
)
def test_chat_asks_for_logprobs_in_two_fields(fields, reported):
    assert chat(**fields).params.logprobs == reported


def test_completions_ask_for_logprobs_in_one():
    assert completion(logprobs=3).params.logprobs == 3
    assert completion(logprobs=0).params.logprobs == 0


@pytest.mark.parametrize("field", ["max_tokens", "stop", "seed", "n", "tools", "logit_bias", "x"])
def test_null_says_nothing(field: str):
    assert chat(**{field: None}) == chat()


def test_limits_that_agree_may_be_said_twice():
    assert chat(max_tokens=9, max_completion_tokens=9).params.max_tokens == 9


@pytest.mark.parametrize(
    "fields, param, says",
    [
        ({"temperature": "hot"}, "temperature", "temperature is 'hot'"),
        ({"temperature": True}, "temperature", "must be a number"),
        ({"top_p": 0}, "top_p", "top_p is 0"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens is 0"),
        ({"max_tokens": 2.5}, "max_tokens", "2.5"),
        ({"max_completion_tokens": "5"}, "max_completion_tokens", "max_completion_tokens: "),
        ({"repeat_penalty": 0}, "repeat_penalty", "repeat_penalty: "),
        ({"seed": -1}, "seed", "seed is -1"),
        ({"stop": [1]}, "stop", "1"),
        ({"stop": ""}, "stop", "empty string"),
        ({"logit_bias": [1]}, "logit_bias", "an object"),
        ({"logit_bias": {"the": 1}}, "logit_bias", "'the', which is no token id"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "'-1', which is no token id"),
        ({"logit_bias": {"5": "x"}}, "logit_bias", "logit_bias[5] is 'x'"),
        ({"logprobs": 3}, "logprobs", "true or false"),
        ({"top_logprobs": 3}, "top_logprobs", "needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "21"),
        ({"max_tokens": 5, "n_predict": 6}, "n_predict", "max_tokens is 5 and n_predict is 6"),
        ({"model": 7}, "model", "model is 7"),
        ({"stream": "yes"}, "stream", "stream is 'yes'"),
        ({"chat_template_kwargs": "x"}, "chat_template_kwargs", "an object"),
    ],
)
def test_a_wrong_value_is_refused_under_the_name_that_was_used(fields, param, says):
    error = refusal(**fields)
    assert error.param == param and says in error.message


# Delivery


def test_streaming_usage_and_the_number_of_answers_are_read():
    assert (chat().stream, chat().include_usage, chat().answers) == (False, False, 1)
    asked = chat(stream=True, stream_options={"include_usage": True}, n=3)
    assert (asked.stream, asked.include_usage, asked.answers) == (True, True, 3)
    assert completion(n=2).answers == 2


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"n": 0}, "n"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ],
)
def test_what_cannot_be_delivered_is_refused(fields, param):
    assert refusal(**fields).param == param


@pytest.mark.parametrize(
    ("fields", "numbers"),
    [({}, (1, 1)), ({"n": 3}, (3, 3)), ({"best_of": 3}, (1, 3)), ({"n": 2, "best_of": 2}, (2, 2))],
)
def test_as_many_answers_are_generated_as_are_wanted_or_are_to_be_chosen_from(fields, numbers):
    for request in (chat(**fields), completion(**fields)):
        assert (request.answers, request.best_of) == numbers


@pytest.mark.parametrize(
    "fields", [{"n": 3, "best_of": 2}, {"best_of": 0}, {"best_of": 2, "stream": True}]
)
def test_the_best_of_fewer_or_of_what_is_streamed_is_refused(fields):
    assert refusal(**fields).param == "best_of"


# What cannot be honoured


@pytest.mark.parametrize(
    "fields",
    [
        {"functions": [{"name": "f"}]},
        {"function_call": {"name": "f"}},
        {"structured_outputs": {"regex": "a"}},
        {"modalities": ["text", "audio"]},
        {"echo": True},
        {"suffix": "end"},
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(fields):
    (name,) = fields
    error = refusal(**fields)
    assert (error.param, error.code) == (name, "unsupported_value")
    assert error.message.startswith(f"{name} is ")
    with pytest.raises(RequestRefusedError, match=name):
        completion(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1, "best_of": 1},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
        {"tool_choice": "none"},
        {"response_format": {"type": "text"}},
        {"echo": False, "suffix": ""},
        {"user": "me", "metadata": {"a": 1}, "cache_prompt": True, "store": 5, "my_own": []},
        {"model": "gpt-4o-mini"},
    ],
)
def test_what_asks_for_nothing_and_what_is_unknown_changes_nothing(fields):
    assert chat(**fields) == chat()


@pytest.mark.parametrize("fields", [{"n": "2"}, {"n": True}, {"echo": "no"}])
def test_a_wrong_type_there_is_named_as_such(fields):
    error = refusal(**fields)
    assert error.code == "invalid_type" and error.param in fields


# Prompts


def test_messages_are_passed_on_as_they_came():
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "!"}]},
        {"role": "user", "content": "Hi", "name": "me"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]},
        {"role": "tool", "content": "5", "tool_call_id": "x"},
    ]  # fmt: skip
    assert chat(messages=messages).messages == tuple(messages)


@pytest.mark.parametrize(
    "messages, param",
    [
        (None, "messages"),
        ("Hi", "messages"),
        ([], "messages"),
        (["Hi"], "messages[0]"),
        ([{"content": "Hi"}], "messages[0].role"),
        ([*MESSAGES, {"role": "user"}], "messages[1].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": ["Hi"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "assistant", "tool_calls": 5}], "messages[0].tool_calls"),
    ],
)
def test_a_wrong_message_is_named_by_its_path(messages, param):
    assert refusal(messages=messages).param == param


def test_template_arguments_hold_the_reasoning_effort():
    request = chat(chat_template_kwargs={"enable_thinking": False}, reasoning_effort="low")
    assert request.template_arguments == {"enable_thinking": False, "reasoning_effort": "low"}


@pytest.mark.parametrize(
    "prompt, read",
    [("Hi", "Hi"), (["Hi"], "Hi"), ([5, 6], (5, 6)), ([[5, 6]], (5, 6)), ("", ""), ([], ())],
)
def test_a_prompt_is_text_or_token_ids(prompt, read):
    assert completion(prompt=prompt).prompt == read


@pytest.mark.parametrize(
    "prompt, param",
    [
        (None, "prompt"), (5, "prompt"), (["a", "b"], "prompt"), ([[1], [2]], "prompt"),
        ([1, "a"], "prompt[1]"), ([1, True], "prompt[1]"), ([-1], "prompt[0]"),
    ],
)  # fmt: skip
def test_any_other_prompt_is_refused(prompt, param):
    with pytest.raises(RequestRefusedError) as caught:
        completion(prompt=prompt)
    assert caught.value.param == param


@pytest.mark.parametrize("body", [None, [], "x", 5])
def test_a_body_that_is_no_object_is_refused(body):
    with pytest.raises(RequestRefusedError, match="body is"):
        read_chat_request(body, NO_ADVICE)


# Errors


@pytest.mark.parametrize(
    "error, status, kind, code",
    [
        (RequestRefusedError("n", param="n", code="c"), 400, "invalid_request_error", "c"),
        (PromptTooLongError(9, 8), 400, "invalid_request_error", "context_length_exceeded"),
        (EmptyPromptError("empty"), 400, "invalid_request_error", None),
        (ChatTemplateError("refused"), 400, "invalid_request_error", None),
        (TokenizerError("no text"), 400, "invalid_request_error", None),
        (RunError("broken"), 500, "server_error", "server_error"),
    ],
)
def test_errors_say_who_is_to_blame(error, status, kind, code):
    reply = error_reply(error)
    counts = {"n_prompt_tokens": 9, "n_ctx": 8} if code == "context_length_exceeded" else {}
    assert reply.status_code == status
    assert reply.body == {
        "error": {
            "message": error.message,
            "type": kind,
            "param": getattr(error, "param", None),
            "code": code,
            **counts,
        }
    }
