"""Reads the JSON body of an OpenAI-style request into a prompt and sampling parameters.

Fields that the engine can honour are read, with the extensions that local servers share. A field
that would change the answer and cannot be honoured is refused by name; a field that is not known,
and null, say nothing. ``model`` must be a string and is not compared with anything here: a batch
runs one model, and files written for a hosted model run unchanged.

Knows no HTTP, no file and no engine; lengths and token ids are checked where the model is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from edge_runtime.api.answer_form import (
    read_answer_form,
    read_grammar,
    read_reasoning_switch,
)
from edge_runtime.api.json_fields import Kind, is_a, optional, required, shown, wrong_type
from edge_runtime.api.openai_error import RequestRefusedError
from edge_runtime.bundle import GenerationDefaults
from edge_runtime.errors import InvalidParameterError
from edge_runtime.generation.params import SamplingParams, sampling_params
from edge_runtime.guidance.grammar import Grammar
from edge_runtime.guidance.plan import ANY_FORM, AnswerForm

# OpenAI's own default for plain completions; chat has none there and ends by itself.
DEFAULT_COMPLETION_TOKENS = 16

_UNLIMITED = -1  # how several local servers write "no limit"


@dataclass(frozen=True)
class ChatRequest:
    """A conversation to answer.

    ``messages`` are as they came, checked: a role each, and content that is a string, None, or a
    list of text parts. ``template_arguments`` are further variables for the chat template.
    ``form`` is what the answer must look like.
    ``answers`` is how many are wanted, and ``best_of`` of how many generated ones they are to be the
    likeliest; with ``include_usage`` a stream ends with the token counts.
    """

    messages: tuple[Mapping[str, Any], ...]
    params: SamplingParams
    template_arguments: Mapping[str, Any]
    stream: bool
    include_usage: bool = False
    answers: int = 1
    best_of: int = 1
    form: AnswerForm = ANY_FORM


@dataclass(frozen=True)
class CompletionRequest:
    """A text to continue: as it is, or as token ids; ``grammar`` is what the rest must match.

    The rest as in :class:`ChatRequest`.
    """

    prompt: str | tuple[int, ...]
    params: SamplingParams
    stream: bool
    include_usage: bool = False
    answers: int = 1
    best_of: int = 1
    grammar: Grammar | None = None


def read_chat_request(body: object, defaults: GenerationDefaults) -> ChatRequest:
    """Read the body of a chat completion.

    Args:
        body: what ``json.loads`` gave.
        defaults: what the model's makers want where the request is silent.

    Raises:
        RequestRefusedError: a field is missing, of the wrong type, out of its range, or cannot be
            honoured.
    """
    fields = _common_fields(body)
    # Templates of reasoning models read these; what is said to the template itself goes first.
    arguments = read_reasoning_switch(fields)
    arguments |= optional(fields, "chat_template_kwargs", dict) or {}
    said = _sampling(fields) | {"logprobs": _chat_logprobs(fields)}
    return ChatRequest(
        messages=read_messages(fields),
        params=sampling_params(defaults, **said),
        template_arguments=arguments,
        stream=bool(optional(fields, "stream", bool)),
        include_usage=_include_usage(fields),
        answers=_answers(fields),
        best_of=_best_of(fields),
        form=read_answer_form(fields),
    )


def read_completion_request(body: object, defaults: GenerationDefaults) -> CompletionRequest:
    """Read the body of a plain completion. Arguments and errors as :func:`read_chat_request`."""
    fields = _common_fields(body)
    for name in ("tools", "tool_choice"):
        if fields.get(name) not in (None, [], "none", "auto"):
            raise RequestRefusedError(
                f"{name} is {shown(fields[name])}: tools are for chat",
                param=name,
                code="unsupported_value",
            )
    logprobs = _checked(fields, "logprobs", "logprobs", fields.get("logprobs"))
    said = {"max_tokens": DEFAULT_COMPLETION_TOKENS} | _sampling(fields) | {"logprobs": logprobs}
    return CompletionRequest(
        prompt=_prompt(fields),
        params=sampling_params(defaults, **said),
        stream=bool(optional(fields, "stream", bool)),
        include_usage=_include_usage(fields),
        answers=_answers(fields),
        best_of=_best_of(fields),
        grammar=read_grammar(fields),
    )


# What cannot be honoured


@dataclass(frozen=True)
class _Unsupported:
    """A field that would change the answer: its type, and the values that ask for nothing."""

    kind: Kind
    asks_for_nothing: Callable[[Any], bool]
    why: str


def _is_empty(value: Any) -> bool:
    return not value


_OLD_TOOLS = "this older form is not supported: use tools and tool_choice"
_UNSUPPORTED = {
    "functions": _Unsupported(list, _is_empty, _OLD_TOOLS),
    "function_call": _Unsupported((str, dict), lambda v: v in ("none", "auto"), _OLD_TOOLS),
    "structured_outputs": _Unsupported(dict, _is_empty, "use response_format, regex or grammar"),
    "modalities": _Unsupported(list, lambda v: v in ([], ["text"]), "only text is supported"),
    "audio": _Unsupported(dict, _is_empty, "only text is supported"),
    "web_search_options": _Unsupported(dict, lambda v: False, "nothing is fetched"),
    "echo": _Unsupported(bool, _is_empty, "the prompt is not repeated"),
    "suffix": _Unsupported(str, _is_empty, "filling in the middle is not supported"),
}


def _common_fields(body: object) -> Mapping[str, Any]:
    """The fields that say something, once nothing among them asks for what cannot be done."""
    if not isinstance(body, dict):
        raise wrong_type("body", body, "an object")
    fields = {name: value for name, value in body.items() if value is not None}
    optional(fields, "model", str)
    for name, unsupported in _UNSUPPORTED.items():
        value = optional(fields, name, unsupported.kind)
        if value is not None and not unsupported.asks_for_nothing(value):
            raise RequestRefusedError(
                f"{name} is {shown(value)}: {unsupported.why}", param=name, code="unsupported_value"
            )
    return fields


# Delivery


def _include_usage(fields: Mapping[str, Any]) -> bool:
    options = optional(fields, "stream_options", dict)
    if options is None:
        return False
    if not fields.get("stream"):
        raise RequestRefusedError(
            "stream_options needs stream to be true", param="stream_options", code="invalid_value"
        )
    value = options.get("include_usage")
    if value is not None and not is_a(value, bool):
        raise wrong_type("stream_options.include_usage", value, "true or false")
    return bool(value)


def _answers(fields: Mapping[str, Any]) -> int:
    n = optional(fields, "n", int)
    if n is not None and n < 1:
        raise RequestRefusedError(
            f"n is {n}; it must be 1 or more", param="n", code="invalid_value"
        )
    return 1 if n is None else int(n)


def _best_of(fields: Mapping[str, Any]) -> int:
    answers = _answers(fields)
    best_of = optional(fields, "best_of", int)
    if best_of is None:
        return answers
    if best_of < answers:
        raise RequestRefusedError(
            f"best_of is {best_of}, less than the {answers} answers that are wanted",
            param="best_of",
            code="invalid_value",
        )
    if best_of > answers and fields.get("stream"):
        raise RequestRefusedError(
            f"best_of is {best_of}: which answers are best shows only at their end, not in a stream",
            param="best_of",
            code="unsupported_value",
        )
    return int(best_of)


# Sampling

_SAME_NAME = (
    "temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "stop", "stop_token_ids", "seed", "ignore_eos",
)  # fmt: skip
_OTHER_NAMES = {
    "repeat_penalty": "repetition_penalty",
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "n_predict": "max_tokens",
}
_PARAMETERS = {name: name for name in _SAME_NAME} | _OTHER_NAMES


def _sampling(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What the request says of sampling; a limit that is lifted is there as None."""
    said: dict[str, Any] = {}
    said_by: dict[str, str] = {}
    for name, parameter in _PARAMETERS.items():
        if name not in fields:
            continue
        value = _checked(fields, name, parameter, _without_unlimited(parameter, fields[name]))
        if parameter in said and said[parameter] != value:
            first = said_by[parameter]
            raise RequestRefusedError(
                f"{first} is {shown(fields[first])} and {name} is {shown(fields[name])}: "
                "they mean the same",
                param=name,
                code="invalid_value",
            )
        said[parameter], said_by[parameter] = value, name
    bias = _logit_bias(fields)
    return said if bias is None else said | {"logit_bias": bias}


def _without_unlimited(parameter: str, value: Any) -> Any:
    if is_a(value, int) and value == _UNLIMITED:
        return {"max_tokens": None, "top_k": 0}.get(parameter, value)
    return value


def _checked(fields: Mapping[str, Any], name: str, parameter: str, value: Any) -> Any:
    """The value as SamplingParams keeps it; its complaint under the name that the client used."""
    if value is None:
        return None
    try:
        return getattr(SamplingParams(**{parameter: value}), parameter)
    except InvalidParameterError as exc:
        said = exc.message if name == parameter else f"{name}: {exc.message}"
        raise RequestRefusedError(said, param=name, code="invalid_value") from exc


def _logit_bias(fields: Mapping[str, Any]) -> Any:
    """JSON has no integer keys: token ids come as strings."""
    bias = optional(fields, "logit_bias", dict)
    if bias is None:
        return None
    for key in bias:
        if not re.fullmatch(r"[0-9]{1,9}", key):
            raise RequestRefusedError(
                f"logit_bias holds {shown(key)}, which is no token id",
                param="logit_bias",
                code="invalid_value",
            )
    return _checked(fields, "logit_bias", "logit_bias", {int(k): v for k, v in bias.items()})


def _chat_logprobs(fields: Mapping[str, Any]) -> int | None:
    """Chat says whether, and how many alternatives, in two fields."""
    asked = bool(optional(fields, "logprobs", bool))
    top: int | None = _checked(fields, "top_logprobs", "logprobs", fields.get("top_logprobs"))
    if asked:
        return top or 0
    if top:
        raise RequestRefusedError(
            "top_logprobs needs logprobs to be true", param="top_logprobs", code="invalid_value"
        )
    return None


# Prompts


def read_messages(fields: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The ``messages`` of a body, checked.

    Raises:
        RequestRefusedError: they are missing, none, or not messages of text.
    """
    messages = required(fields, "messages", list)
    if not messages:
        raise RequestRefusedError("messages is empty", param="messages", code="invalid_value")
    for i, message in enumerate(messages):
        _check_message(message, f"messages[{i}]")
    return tuple(messages)


def _check_message(message: object, where: str) -> None:
    if not isinstance(message, dict):
        raise wrong_type(where, message, "an object")
    role = required(message, "role", str, within=where)
    calls = message.get("tool_calls")
    if calls is not None and not (is_a(calls, list) and all(is_a(call, dict) for call in calls)):
        raise wrong_type(f"{where}.tool_calls", calls, "a list of objects")
    for i, call in enumerate(calls or ()):
        check_call(call, f"{where}.tool_calls[{i}]")
    content = message.get("content")
    if content is None and role == "assistant":
        return  # one that only called tools
    content = required(message, "content", (str, list), within=where)
    for i, part in enumerate(content if isinstance(content, list) else ()):
        _check_part(part, f"{where}.content[{i}]")


def check_call(call: Mapping[str, Any], where: str) -> None:
    """Check a call in the history: whom it called, and with what.

    Raises:
        RequestRefusedError: it is none.
    """
    function = required(call, "function", dict, within=where)
    required(function, "name", str, within=f"{where}.function")
    arguments = function.get("arguments")
    if arguments is not None and not is_a(arguments, (str, dict)):
        raise wrong_type(f"{where}.function.arguments", arguments, "an object or its JSON text")


def _check_part(part: object, where: str) -> None:
    if not isinstance(part, dict):
        raise wrong_type(where, part, "an object")
    kind = required(part, "type", str, within=where)
    if kind != "text":
        raise RequestRefusedError(
            f"{where}.type is {shown(kind)}: only text is supported",
            param=f"{where}.type",
            code="unsupported_value",
        )
    required(part, "text", str, within=where)


def _prompt(fields: Mapping[str, Any]) -> str | tuple[int, ...]:
    """A string or token ids; a list that holds just one of them is taken as that one."""
    prompt = required(fields, "prompt", (str, list))
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
        if len(prompt) > 1:
            raise RequestRefusedError(
                f"prompt holds {len(prompt)} prompts: a request takes one",
                param="prompt",
                code="unsupported_value",
            )
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt
    for i, token in enumerate(prompt):
        if not is_a(token, int) or token < 0:
            raise wrong_type(f"prompt[{i}]", token, "a token id")
    return tuple(prompt)
