"""Reads the JSON body of an Ollama request into a prompt and sampling parameters.

As with OpenAI's: a field that would change the answer and cannot be honoured is refused by name;
one that is not known, and null, say nothing. ``num_ctx`` asks for room and is no limit here: the
server's context is what it is, and a prompt that does not fit is refused, never cut.

Knows no HTTP and no engine. Source: Ollama's API description (docs/api.md of its repository).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edge_runtime.api.answer_form import read_ollama_form
from edge_runtime.api.json_fields import is_a, optional, required, shown, wrong_type
from edge_runtime.api.openai_error import RequestRefusedError
from edge_runtime.api.openai_request import check_call
from edge_runtime.bundle import GenerationDefaults
from edge_runtime.errors import InvalidParameterError
from edge_runtime.generation.params import SamplingParams, sampling_params
from edge_runtime.guidance.plan import AnswerForm

FOREVER = float("inf")


@dataclass(frozen=True)
class OllamaChat:
    """A conversation to answer; without messages the model is only loaded, or unloaded.

    ``form`` is what the answer must look like; ``keep_alive_s`` is how long the model stays loaded afterwards: None as the server has it,
    infinite for ever.
    """

    messages: tuple[Mapping[str, Any], ...]
    params: SamplingParams
    template_arguments: Mapping[str, Any]
    stream: bool
    keep_alive_s: float | None
    form: AnswerForm


@dataclass(frozen=True)
class OllamaGenerate:
    """A text to answer, through the chat template or as it is (``raw``).

    The rest as in :class:`OllamaChat`; without a prompt the model is only loaded, or unloaded.
    """

    prompt: str
    system: str | None
    raw: bool
    params: SamplingParams
    template_arguments: Mapping[str, Any]
    stream: bool
    keep_alive_s: float | None
    form: AnswerForm


def read_ollama_chat(body: Mapping[str, Any], defaults: GenerationDefaults) -> OllamaChat:
    """Read the body of ``/api/chat``.

    Args:
        body: the JSON object.
        defaults: what the model's makers want where the request is silent.

    Raises:
        RequestRefusedError: a field is missing, of the wrong type, out of its range, or cannot be
            honoured.
    """
    fields = _common_fields(body)
    return OllamaChat(
        messages=_messages(fields),
        params=_params(fields, defaults),
        template_arguments=_thinking(fields),
        stream=_stream(fields),
        keep_alive_s=keep_alive_seconds(fields.get("keep_alive")),
        form=read_ollama_form(fields),
    )


def read_ollama_generate(body: Mapping[str, Any], defaults: GenerationDefaults) -> OllamaGenerate:
    """Read the body of ``/api/generate``. Arguments and errors as :func:`read_ollama_chat`."""
    fields = _common_fields(body)
    _refuse(fields, "tools", list, "tools are for /api/chat")
    _refuse(fields, "suffix", str, "filling in the middle is not supported")
    _refuse(fields, "template", str, "the model's own chat template is used")
    _refuse(fields, "context", list, "send the conversation to /api/chat")
    _refuse(fields, "images", list, "only text is supported")
    return OllamaGenerate(
        prompt=optional(fields, "prompt", str) or "",
        system=optional(fields, "system", str) or None,
        raw=bool(optional(fields, "raw", bool)),
        params=_params(fields, defaults),
        template_arguments=_thinking(fields),
        stream=_stream(fields),
        keep_alive_s=keep_alive_seconds(fields.get("keep_alive")),
        form=read_ollama_form(fields),
    )


_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(ns|us|µs|ms|s|m|h)")


def keep_alive_seconds(value: object) -> float | None:
    """Seconds of a ``keep_alive``: a number, or a duration as Go writes it, such as ``1h30m``.

    Negative is for ever, and so is what is too long for a clock.

    Raises:
        RequestRefusedError: neither.
    """
    if value is None:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return FOREVER if value < 0 or value > 1e9 else float(value)
    text = value.strip() if isinstance(value, str) else ""
    sign, digits = (text[0], text[1:]) if text[:1] in ("-", "+") else ("", text)
    if re.fullmatch(r"[0-9]{1,12}", digits):
        seconds = float(digits)
    elif digits and re.fullmatch(f"(?:{_DURATION.pattern})+", digits):
        seconds = sum(float(m[1]) * _UNITS_S[m[2]] for m in _DURATION.finditer(digits))
    else:
        raise wrong_type("keep_alive", value, "seconds or a duration such as 5m")
    return FOREVER if sign == "-" or seconds > 1e9 else seconds


def _common_fields(body: Mapping[str, Any]) -> Mapping[str, Any]:
    fields = {name: value for name, value in body.items() if value is not None}
    required(fields, "model", str)
    _refuse(fields, "logprobs", bool, "they are given by /v1/chat/completions")
    return fields


def _refuse(fields: Mapping[str, Any], name: str, kind: type, why: str) -> None:
    """Refuse a field unless it is empty."""
    value = optional(fields, name, kind)
    if value:
        raise _refused(name, value, why)


def _refused(name: str, value: object, why: str) -> RequestRefusedError:
    return RequestRefusedError(
        f"{name} is {shown(value)}: {why}", param=name, code="unsupported_value"
    )


def _stream(fields: Mapping[str, Any]) -> bool:
    value = optional(fields, "stream", bool)
    return True if value is None else bool(value)


def _thinking(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Whether to reason, as templates read it; how hard, where a word says so."""
    value = fields.get("think")
    if value is None:
        return {}
    if isinstance(value, bool):
        return {"enable_thinking": value}
    if isinstance(value, str):
        return {"enable_thinking": True, "reasoning_effort": value}
    raise wrong_type("think", value, "true or false, or how hard in a word")


# Options

_PARAMETERS = {
    "temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p",
    "typical_p": "typical_p", "repeat_penalty": "repetition_penalty", "seed": "seed",
    "presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty",
    "stop": "stop", "num_predict": "max_tokens",
}  # fmt: skip


def _params(fields: Mapping[str, Any], defaults: GenerationDefaults) -> SamplingParams:
    options = optional(fields, "options", dict) or {}
    said: dict[str, Any] = {}
    for name, parameter in _PARAMETERS.items():
        value = options.get(name)
        if value is None or (name == "num_predict" and is_a(value, int) and value < 0):
            continue  # -1 and -2: until the end, or until the context is full
        if name == "stop" and value == []:
            continue
        try:
            said[parameter] = getattr(SamplingParams(**{parameter: value}), parameter)
        except InvalidParameterError as exc:
            where = f"options.{name}"
            raise RequestRefusedError(
                f"{where}: {exc.message}", param=where, code="invalid_value"
            ) from exc
    _check_other_options(options, penalized=said.get("repetition_penalty", 1.0) != 1.0)
    return sampling_params(defaults, **said)


def _check_other_options(options: Mapping[str, Any], *, penalized: bool) -> None:
    """Refuse what would change the answer; threads, batches and the like change none."""
    room = options.get("num_ctx")
    if room is not None and not (is_a(room, int) and room > 0):
        raise wrong_type("options.num_ctx", room, "a whole number above 0")
    if options.get("mirostat"):
        raise _refused("options.mirostat", options["mirostat"], "it is not supported")
    if options.get("tfs_z") not in (None, 1, 0):
        raise _refused("options.tfs_z", options["tfs_z"], "it is not supported")
    window = options.get("repeat_last_n")
    if penalized and window not in (None, -1):
        raise _refused("options.repeat_last_n", window, "the penalty looks at the whole text: -1")


# Messages


def _messages(fields: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    messages = optional(fields, "messages", list) or []
    return tuple(_message(message, f"messages[{i}]") for i, message in enumerate(messages))


def _message(message: object, where: str) -> Mapping[str, Any]:
    if not isinstance(message, dict):
        raise wrong_type(where, message, "an object")
    role = required(message, "role", str, within=where)
    content = message.get("content")
    if content is None:
        content = ""
    if not isinstance(content, str):
        raise wrong_type(f"{where}.content", content, "a string")
    if message.get("images"):
        raise _refused(f"{where}.images", message["images"], "only text is supported")
    calls = message.get("tool_calls") or []
    if not (is_a(calls, list) and all(is_a(call, dict) for call in calls)):
        raise wrong_type(f"{where}.tool_calls", calls, "a list of objects")
    for i, call in enumerate(calls):
        check_call(call, f"{where}.tool_calls[{i}]")
    kept: dict[str, Any] = {"role": role, "content": content}
    if calls:
        kept["tool_calls"] = calls
    if isinstance(message.get("tool_name"), str):
        kept["name"] = message["tool_name"]
    if isinstance(message.get("thinking"), str):
        kept["reasoning_content"] = message["thinking"]
    return kept
