"""What requests say of their answers' form, and how what cannot be kept is refused."""

from __future__ import annotations

from typing import Any

import pytest

from edge_runtime.api.answer_form import naming, read_answer_form, read_ollama_form
from edge_runtime.api.ollama_request import read_ollama_chat, read_ollama_generate
from edge_runtime.api.openai_error import RequestRefusedError
from edge_runtime.api.openai_request import read_chat_request, read_completion_request
from edge_runtime.bundle import GenerationDefaults
from edge_runtime.errors import GrammarError
from edge_runtime.guidance.grammar import ANY_JSON_OBJECT, ContextFree, JsonSchema, Regex
from edge_runtime.guidance.plan import ANY_FORM, AnswerForm

SCHEMA = {"type": "object", "properties": {"b": {}, "a": {}}}
CLOCK = {"type": "function", "function": {"name": "clock", "description": None}}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    "fields, grammar",
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {}, "grammar": "", "json_schema": {}}, None),
        ({"response_format": {"type": "json_object"}}, ANY_JSON_OBJECT),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, JsonSchema.of(SCHEMA)),
        (
            {"response_format": {"type": "json_schema",
                                 "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}},
            JsonSchema.of(SCHEMA),
        ),
        ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, JsonSchema.of(SCHEMA)),
        ({"json_schema": SCHEMA}, JsonSchema.of(SCHEMA)),
        ({"grammar": 'root ::= "a"'}, ContextFree('root ::= "a"')),
        ({"regex": "a|b"}, Regex("a|b")),
        ({"guided_regex": "a|b"}, Regex("a|b")),
        ({"guided_choice": ["a.", "b"]}, Regex(r"a\.|b")),
        ({"guided_json": '{"type": "object"}'}, JsonSchema.of({"type": "object"})),
        ({"guided_grammar": "start: A"}, ContextFree("start: A")),
    ],
)  # fmt: skip
def test_every_field_for_a_form_is_heard(fields: dict[str, Any], grammar: object):
    assert read_answer_form(fields) == AnswerForm(grammar=grammar)  # type: ignore[arg-type]


def test_the_order_of_properties_is_kept():
    assert JsonSchema.of(SCHEMA).text.index('"b"') < JsonSchema.of(SCHEMA).text.index('"a"')


@pytest.mark.parametrize(
    "choice, must, only, parallel",
    [
        (None, False, None, None),
        ("auto", False, None, True),
        ("required", True, None, False),
        ({"type": "function", "function": {"name": "clock"}}, True, "clock", True),
    ],
)
def test_tools_and_how_they_are_chosen_are_heard(
    choice: object, must: bool, only: str | None, parallel: bool | None
):
    fields = {"tools": [CLOCK, WEATHER], "tool_choice": choice, "parallel_tool_calls": parallel}
    use = read_answer_form(fields).tools
    assert use is not None
    assert [tool.name for tool in use.tools] == ["clock", "weather"]
    assert (use.must_call, use.only) == (must, only)
    assert use.parallel is (parallel is not False)
    assert use.tools[1].described == WEATHER
    assert use.tools[0].described == {"type": "function", "function": {"name": "clock"}}


def test_no_tool_may_be_called_where_none_is_chosen():
    assert read_answer_form({"tools": [CLOCK], "tool_choice": "none"}) == ANY_FORM
    both = {"tools": [CLOCK], "tool_choice": "none", "regex": "a"}
    assert read_answer_form(both).grammar == Regex("a")


@pytest.mark.parametrize(
    "fields, param, says",
    [
        ({"response_format": "json"}, "response_format", "an object"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "xml"),
        ({"response_format": {"schema": {}}}, "response_format.type", "missing"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
         "response_format.json_schema.schema", "missing"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": []}}},
         "response_format.json_schema.schema", "an object"),
        ({"json_schema": {"multipleOf": 10**9}}, "json_schema", "multipleOf"),
        ({"guided_json": "{"}, "guided_json", "no JSON"),
        ({"guided_choice": [1]}, "guided_choice", "a list of strings"),
        ({"regex": "a", "grammar": "start: A"}, "regex", "both"),
        ({"regex": "a", "tools": [CLOCK]}, "regex", "cannot be combined"),
        ({"tools": {}}, "tools", "a list"),
        ({"tools": [1]}, "tools[0]", "an object"),
        ({"tools": [{"type": "web"}]}, "tools[0].type", "only functions"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing"),
        ({"tools": [CLOCK, {"type": "function", "function": {"name": "a b"}}]},
         "tools[1].function.parameters", "a b"),
        ({"tools": [{"type": "function", "function": {"name": "x", "parameters": {"not": 1,
          "$ref": "#/x"}}}]}, "tools[0].function.parameters", "#/x"),
        ({"tools": [CLOCK, CLOCK]}, "tools", "two tools"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"tools": [CLOCK], "tool_choice": "any"}, "tool_choice", "any"),
        ({"tools": [CLOCK], "tool_choice": {"type": "function", "function": {"name": "x"}}},
         "tool_choice", "no tool"),
        ({"tools": [CLOCK], "parallel_tool_calls": "no"}, "parallel_tool_calls", "true or false"),
        ({"reasoning_budget": -2}, "reasoning_budget", "-2"),
        ({"thinking_budget": "x"}, "thinking_budget", "a whole number"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_or_kept_is_refused_by_name(
    fields: dict[str, Any], param: str, says: str
):
    with pytest.raises(RequestRefusedError) as caught:
        read_answer_form(fields)
    assert caught.value.param == param
    assert says in caught.value.message


def test_a_refusal_without_the_package_names_the_field_and_the_extra():
    error = GrammarError("it needs llguidance", hint="pip install 'edge-runtime[guide]'")
    says = r"tools: .*llguidance.*\[guide\]"
    with pytest.raises(RequestRefusedError, match=says) as caught, naming("tools"):
        raise error
    assert caught.value.param == "tools"


def test_budgets_are_heard_and_lifted():
    assert read_answer_form({"reasoning_budget": 5}).reasoning_budget == 5
    assert read_answer_form({"thinking_budget": 0}).reasoning_budget == 0
    assert read_answer_form({"reasoning_budget": -1}).reasoning_budget is None


def test_chats_carry_form_and_reasoning_switch():
    body = {"messages": MESSAGES, "tools": [CLOCK], "reasoning_effort": "none"}
    request = read_chat_request(body, GenerationDefaults())
    assert request.form.tools is not None
    assert request.template_arguments == {"enable_thinking": False, "reasoning_effort": "none"}
    body |= {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": True}}
    request = read_chat_request(body, GenerationDefaults())
    assert request.template_arguments == {"reasoning_effort": "low", "enable_thinking": True}


def test_completions_take_a_grammar_and_no_tools():
    body = {"prompt": "x", "regex": "a"}
    assert read_completion_request(body, GenerationDefaults()).grammar == Regex("a")
    for field, value in (("tools", [CLOCK]), ("tool_choice", "required")):
        with pytest.raises(RequestRefusedError, match="for chat"):
            read_completion_request({"prompt": "x", field: value}, GenerationDefaults())


@pytest.mark.parametrize("call", [{}, {"function": 1}, {"function": {"name": 1}},
                                  {"function": {"name": "x", "arguments": []}}])  # fmt: skip
def test_calls_in_the_history_are_checked(call: dict[str, Any]):
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    with pytest.raises(RequestRefusedError, match=r"tool_calls\[0\]"):
        read_chat_request({"messages": messages}, GenerationDefaults())
    messages[0]["content"] = ""
    body = {"model": "m", "messages": messages}
    with pytest.raises(RequestRefusedError, match=r"tool_calls\[0\]"):
        read_ollama_chat(body, GenerationDefaults())


def test_ollamas_format_and_tools_are_heard():
    assert read_ollama_form({"format": "json"}).grammar == ANY_JSON_OBJECT
    assert read_ollama_form({"format": SCHEMA}).grammar == JsonSchema.of(SCHEMA)
    assert read_ollama_form({"format": ""}) == ANY_FORM
    assert read_ollama_form({"tools": [CLOCK]}).tools is not None
    body = {"model": "m", "messages": MESSAGES, "format": "json"}
    assert read_ollama_chat(body, GenerationDefaults()).form.grammar == ANY_JSON_OBJECT
    body = {"model": "m", "prompt": "Hi", "format": SCHEMA}
    assert read_ollama_generate(body, GenerationDefaults()).form.grammar == JsonSchema.of(SCHEMA)


@pytest.mark.parametrize(
    "fields, param",
    [({"format": "xml"}, "format"), ({"format": 1}, "format"), ({"tools": [1]}, "tools[0]"),
     ({"format": "json", "tools": [CLOCK]}, "format"), ({"format": {"$ref": "#/x"}}, "format")],
)  # fmt: skip
def test_ollamas_refusals_name_their_field(fields: dict[str, Any], param: str):
    with pytest.raises(RequestRefusedError) as caught:
        read_ollama_form(fields)
    assert caught.value.param == param
