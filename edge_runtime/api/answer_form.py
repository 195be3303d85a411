"""Reads what a request says of its answer's form: schemas and grammars, tools, reasoning.

Fields of OpenAI's API, of Ollama's, and the extensions that local servers share. Every refusal
names the field. Knows no HTTP and no engine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from edge_runtime.api.json_fields import Kind, is_a, optional, required, shown, wrong_type
from edge_runtime.api.openai_error import RequestRefusedError
from edge_runtime.errors import GrammarError
from edge_runtime.guidance.grammar import (
    ANY_JSON_OBJECT,
    ContextFree,
    Grammar,
    JsonSchema,
    Regex,
)
from edge_runtime.guidance.plan import AnswerForm
from edge_runtime.guidance.tools import Tool, ToolChoice, ToolUse


def read_answer_form(fields: Mapping[str, Any]) -> AnswerForm:
    """The form of a chat's answer.

    Args:
        fields: of the request, those that are null left out.

    Raises:
        RequestRefusedError: a field is of the wrong type or cannot be honoured.
    """
    grammar = read_grammar(fields)
    tools = _tool_use(fields)
    if grammar is not None and tools is not None:
        name = _form_field(fields)
        raise RequestRefusedError(
            f"{name} and tools cannot be combined: an answer has a form or calls tools",
            param=name,
            code="unsupported_value",
        )
    return AnswerForm(grammar, tools, _reasoning_budget(fields))


def read_grammar(fields: Mapping[str, Any]) -> Grammar | None:
    """What an answer must match, from whichever field says so; one of them may.

    Raises:
        RequestRefusedError: as :func:`read_answer_form`.
    """
    said: dict[str, Grammar] = {}
    for name, (kind, read) in _FORM_FIELDS.items():
        value = optional(fields, name, kind)
        # Some clients send empty ones.
        if value is None or value in ("", {}):
            continue
        with naming(name):
            grammar = read(value)
        if grammar is not None:
            said[name] = grammar
    if len(said) > 1:
        first, second, *_ = said
        raise RequestRefusedError(
            f"{first} and {second} both say what the answer must match",
            param=second,
            code="invalid_value",
        )
    return next(iter(said.values()), None)


def read_ollama_form(fields: Mapping[str, Any]) -> AnswerForm:
    """As :func:`read_answer_form`, of Ollama's ``format`` and ``tools``."""
    form = optional(fields, "format", (str, dict))
    grammar: Grammar | None = None
    if isinstance(form, dict) and form:
        with naming("format"):
            grammar = JsonSchema.of(form)
    elif form == "json":
        grammar = ANY_JSON_OBJECT
    elif form:
        raise RequestRefusedError(
            f'format is {shown(form)}; it must be "json" or a JSON schema',
            param="format",
            code="invalid_value",
        )
    tools = _tool_use(fields)
    if grammar is not None and tools is not None:
        raise RequestRefusedError(
            "format and tools cannot be combined: an answer has a form or calls tools",
            param="format",
            code="unsupported_value",
        )
    return AnswerForm(grammar, tools)


@contextmanager
def naming(field: str) -> Iterator[None]:
    """Tell what is wrong with a grammar as a refusal of the field that it came from."""
    try:
        yield
    except GrammarError as exc:
        hint = f": {exc.hint}" if exc.hint else ""
        raise RequestRefusedError(
            f"{field}: {exc.message}{hint}", param=field, code="invalid_value"
        ) from exc


def form_field(fields: Mapping[str, Any]) -> str:
    """The field to blame where the form that a request asks for cannot be kept."""
    return "tools" if fields.get("tools") else _form_field(fields)


def _form_field(fields: Mapping[str, Any]) -> str:
    names = (*_FORM_FIELDS, "format")
    return next((name for name in names if fields.get(name)), "response_format")


# Schemas and grammars


def _response_format(value: dict[str, Any]) -> Grammar | None:
    kind = required(value, "type", str, within="response_format")
    if kind == "text":
        return None
    if kind == "json_object":
        schema = value.get("schema")
        return ANY_JSON_OBJECT if schema is None else JsonSchema.of(schema)
    if kind == "json_schema":
        where, holder = "response_format", value
        if value.get("schema") is None:
            holder = required(value, "json_schema", dict, within=where)
            where += ".json_schema"
        return JsonSchema.of(required(holder, "schema", dict, within=where))
    raise RequestRefusedError(
        f'response_format.type is {shown(kind)}; it must be "text", "json_object" or "json_schema"',
        param="response_format.type",
        code="unsupported_value",
    )


def _choice(value: list[Any]) -> Grammar:
    if not value or not all(isinstance(one, str) for one in value):
        raise wrong_type("guided_choice", value, "a list of strings")
    return Regex("|".join(re.escape(one) for one in value))


def _guided_json(value: str | dict[str, Any]) -> Grammar:
    return JsonSchema.of_text(value) if isinstance(value, str) else JsonSchema.of(value)


_FORM_FIELDS: dict[str, tuple[Kind, Callable[[Any], Grammar | None]]] = {
    "response_format": (dict, _response_format),
    "json_schema": (dict, JsonSchema.of),  # llama-server's
    "grammar": (str, ContextFree),
    "regex": (str, Regex),
    "guided_json": ((str, dict), _guided_json),  # vLLM's
    "guided_regex": (str, Regex),
    "guided_choice": (list, _choice),
    "guided_grammar": (str, ContextFree),
}


# Tools


def _tool_use(fields: Mapping[str, Any]) -> ToolUse | None:
    listed = optional(fields, "tools", list) or []
    choice = optional(fields, "tool_choice", (str, dict))
    parallel = optional(fields, "parallel_tool_calls", bool)
    if not listed:
        if choice in (None, "none", "auto"):
            return None
        raise RequestRefusedError(
            f"tool_choice is {shown(choice)}, and there are no tools",
            param="tool_choice",
            code="invalid_value",
        )
    tools = tuple(_tool(tool, f"tools[{i}]") for i, tool in enumerate(listed))
    must, only = _tool_choice(choice)
    if choice == "none":
        return None
    with naming("tools" if only is None else "tool_choice"):
        return ToolUse(tools, must, only, parallel=parallel is not False)


def _tool(tool: object, where: str) -> Tool:
    if not isinstance(tool, dict):
        raise wrong_type(where, tool, "an object")
    kind = required(tool, "type", str, within=where)
    if kind != "function":
        raise RequestRefusedError(
            f"{where}.type is {shown(kind)}: only functions are supported",
            param=f"{where}.type",
            code="unsupported_value",
        )
    function = required(tool, "function", dict, within=where)
    where += ".function"
    name = required(function, "name", str, within=where)
    description = function.get("description")
    if description is not None and not isinstance(description, str):
        raise wrong_type(f"{where}.description", description, "a string")
    parameters = function.get("parameters")
    if parameters is not None and not is_a(parameters, dict):
        raise wrong_type(f"{where}.parameters", parameters, "an object")
    with naming(f"{where}.parameters"):
        # What is null says nothing to a template either.
        kept = {key: value for key, value in function.items() if value is not None}
        return Tool.of(name, parameters or None, {"type": "function", "function": kept})


def _tool_choice(choice: Any) -> tuple[ToolChoice, str | None]:
    if choice in (None, "auto", "none"):
        return ToolChoice.AUTO, None
    if choice == "required":
        return ToolChoice.REQUIRED, None
    if isinstance(choice, dict) and choice.get("type") == "function":
        function = required(choice, "function", dict, within="tool_choice")
        return ToolChoice.REQUIRED, required(function, "name", str, within="tool_choice.function")
    raise RequestRefusedError(
        f'tool_choice is {shown(choice)}; it must be "none", "auto", "required" or a function',
        param="tool_choice",
        code="unsupported_value",
    )


# Reasoning

_BUDGETS = ("reasoning_budget", "thinking_budget", "thinking_token_budget")


def _reasoning_budget(fields: Mapping[str, Any]) -> int | None:
    for name in _BUDGETS:
        value = optional(fields, name, int)
        if value is None or value == -1:
            continue
        if value < -1:
            raise RequestRefusedError(
                f"{name} is {value}; it must be 0 or more, or -1 for no limit",
                param=name,
                code="invalid_value",
            )
        return int(value)
    return None


def read_reasoning_switch(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Variables for a chat template from ``reasoning_effort``; ``none`` switches reasoning off."""
    effort = optional(fields, "reasoning_effort", str)
    if effort is None:
        return {}
    if effort == "none":
        return {"enable_thinking": False, "reasoning_effort": effort}
    return {"reasoning_effort": effort}
