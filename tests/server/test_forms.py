"""Schemas, tools and reasoning over the wire, on a model that shouts its prompt back."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from support.scripted_server import Running, Script, running_server, wait_until_ready

from edge_runtime.text.chat_template import ChatTemplate

CHAT, OLLAMA = "/v1/chat/completions", "/api/chat"
# The marks are in capitals, as all that this model says.
SOURCE = (
    "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}{# [TOOL_CALLS] #}{% endif %}"
    "{# [THINK] #}"
)
CLOCK = {"type": "function", "function": {
    "name": "CLOCK",
    "parameters": {"properties": {"Z": {"enum": ["UTC", "CET"]}}, "required": ["Z"]},
}}  # fmt: skip
CALL = '[tool_calls][{"name": "clock", "arguments": {"z": "cet"}}]'
SCHEMA = {
    "type": "object", "properties": {"A": {"enum": ["ONE", "TWO"]}}, "required": ["A"],
    "additionalProperties": False,
}  # fmt: skip
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}


@pytest.fixture(scope="module")
def thinker() -> Iterator[Running]:
    script = Script(context=1000, chat_template=ChatTemplate(SOURCE, special_tokens={}))
    with running_server(script) as running:
        wait_until_ready(running)
        yield running


@pytest.fixture
def guided(thinker: Running) -> Running:
    pytest.importorskip("llguidance", reason="needs the guide extra")
    return thinker


def body(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "shouter", "messages": [{"role": "user", "content": text}], **fields}


def whole(server: Running, text: str, **fields: Any) -> dict[str, Any]:
    response = server.post(CHAT, body(text, temperature=0, **fields))
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


def streamed(server: Running, text: str, **fields: Any) -> list[dict[str, Any]]:
    response = server.post(CHAT, body(text, temperature=0, stream=True, **fields))
    events = [e[len("data: ") :] for e in response.text.split("\n\n") if e.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return [json.loads(event)["choices"][0] for event in events[:-1]]


def ollama(server: Running, text: str, **fields: Any) -> list[dict[str, Any]]:
    response = server.post(OLLAMA, body(text, options={"temperature": 0}, **fields))
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.text.splitlines()]


def joined(choices: list[dict[str, Any]], field: str) -> str:
    return "".join(choice["delta"].get(field) or "" for choice in choices)


# Reasoning


def test_reasoning_comes_apart_from_content(thinker: Running) -> None:
    message = whole(thinker, "[think]hm[/think]\nyes!")["message"]
    assert (message["reasoning_content"], message["content"]) == ("HM", "YES")
    choices = streamed(thinker, "[think]hm[/think]\nyes!")
    assert joined(choices, "reasoning_content") == "HM"
    assert joined(choices, "content") == "YES"
    assert "reasoning_content" not in whole(thinker, "yes!")["message"]


def test_ollama_calls_it_thinking(thinker: Running) -> None:
    (answer,) = ollama(thinker, "[think]hm[/think]yes!", stream=False)
    assert answer["message"] == {"role": "assistant", "content": "YES", "thinking": "HM"}
    lines = ollama(thinker, "[think]hm[/think]yes!")
    assert "".join(line["message"].get("thinking", "") for line in lines) == "HM"
    assert "".join(line["message"]["content"] for line in lines) == "YES"


def test_a_budget_ends_reasoning(thinker: Running) -> None:
    message = whole(thinker, "[think]aaaaaaaaaaaaaaaaaaaa!", reasoning_budget=3)["message"]
    assert message["reasoning_content"] == "AAA"


def test_logprobs_cover_reasoning_and_content(thinker: Running) -> None:
    text = "[think]h[/think]y!"
    entries = whole(thinker, text, logprobs=True)["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == "[THINK]H[/THINK]Y"
    choices = streamed(thinker, text, logprobs=True)
    found = [e for c in choices for e in (c["logprobs"] or {"content": []})["content"]]
    assert found == entries


# Forms


def test_a_schema_is_kept_to(guided: Running) -> None:
    choice = whole(guided, '{"a": "two"}!', response_format=FORMAT)
    assert json.loads(choice["message"]["content"]) == {"A": "TWO"}
    assert choice["finish_reason"] == "stop"
    answer = joined(streamed(guided, "{anything!", response_format=FORMAT), "content")
    assert json.loads(answer)["A"] in ("ONE", "TWO")


def test_several_answers_are_each_kept_to_it(guided: Running) -> None:
    response = guided.post(CHAT, body("{x!", response_format=FORMAT, n=2, temperature=0))
    for choice in response.json()["choices"]:
        assert json.loads(choice["message"]["content"])["A"] in ("ONE", "TWO")


def test_one_that_is_cut_says_length(guided: Running) -> None:
    choice = whole(guided, "{x!", response_format=FORMAT, max_tokens=4)
    assert choice["finish_reason"] == "length"


def test_reasoning_comes_before_the_form(guided: Running) -> None:
    message = whole(guided, '[think]{hm[/think]{"a": "two"}!', response_format=FORMAT)["message"]
    assert message["reasoning_content"] == "{HM"
    assert json.loads(message["content"]) == {"A": "TWO"}


def test_a_plain_completion_takes_a_regex(guided: Running) -> None:
    request = {"prompt": "yes!", "regex": "NO|YES", "temperature": 0, "max_tokens": 9}
    choice = guided.post("/v1/completions", request).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("YES", "stop")


def test_ollamas_format_is_kept_to(guided: Running) -> None:
    (answer,) = ollama(guided, "{x!", stream=False, format=SCHEMA)
    assert json.loads(answer["message"]["content"])["A"] in ("ONE", "TWO")
    request = {"model": "shouter", "prompt": '{"b": 1}!', "format": "json", "stream": False}
    answer = guided.post("/api/generate", {**request, "options": {"temperature": 0}}).json()
    assert json.loads(answer["response"]) == {"B": 1}


@pytest.mark.parametrize(
    "fields, param, says",
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {
            "type": "array", "uniqueItems": True}}}}, "response_format", "uniqueItems"),
        ({"regex": "("}, "regex", "regex"),
        ({"grammar": "start: missing"}, "grammar", "missing"),
        ({"tools": [{"type": "function", "function": {"name": "x", "parameters": {
            "properties": {"a": {"not": {}}}}}}]}, "tools", "not"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_a_400_that_names_its_field(
    guided: Running, fields: dict[str, Any], param: str, says: str
) -> None:
    response = guided.post(CHAT, body("x!", **fields))
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["param"] == param and says in error["message"]


def test_without_the_package_the_400_names_field_and_extra(
    thinker: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    for field, value in (("response_format", FORMAT), ("tools", [CLOCK]), ("regex", "new")):
        fields = {field: value}
        if field == "response_format":
            fields = {field: {"type": "json_object", "schema": {"title": "never seen before"}}}
        if field == "tools":
            fields = {field: [{"type": "function", "function": {"name": "never_seen_before"}}]}
        response = thinker.post(CHAT, body("x!", **fields))
        error = response.json()["error"]
        assert response.status_code == 400
        assert error["param"] == field
        assert "llguidance" in error["message"] and "[guide]" in error["message"]


# Tools


def test_a_call_is_answered_as_one(guided: Running) -> None:
    choice = whole(guided, f"wait. {CALL}!", tools=[CLOCK])
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert message["content"] == "WAIT."
    (call,) = message["tool_calls"]
    assert call["type"] == "function" and call["function"]["name"] == "CLOCK"
    assert json.loads(call["function"]["arguments"]) == {"Z": "CET"}


def test_a_call_streams_its_name_first_and_then_its_arguments(guided: Running) -> None:
    choices = streamed(guided, f"{CALL}!", tools=[CLOCK])
    deltas = [d for c in choices for d in c["delta"].get("tool_calls", ())]
    opened, *rest = deltas
    assert opened["index"] == 0 and opened["id"] and opened["function"]["name"] == "CLOCK"
    assert len(rest) > 1 and all("id" not in d for d in rest)
    assert json.loads("".join(d["function"]["arguments"] for d in deltas)) == {"Z": "CET"}
    assert choices[-1]["finish_reason"] == "tool_calls"
    assert joined(choices, "content") == ""


def test_an_answer_without_a_call_ends_as_any(guided: Running) -> None:
    choice = whole(guided, "plain!", tools=[CLOCK])
    assert (choice["message"]["content"], choice["finish_reason"]) == ("PLAIN", "stop")
    assert "tool_calls" not in choice["message"]


def test_a_required_call_comes_and_none_comes_where_none_may(guided: Running) -> None:
    for choice in ("required", {"type": "function", "function": {"name": "CLOCK"}}):
        fields = {"tools": [CLOCK], "tool_choice": choice, "parallel_tool_calls": False}
        message = whole(guided, "[tool_calls]no!", **fields)["message"]
        assert [c["function"]["name"] for c in message["tool_calls"]] == ["CLOCK"]
        assert message["content"] is None
    message = whole(guided, f"{CALL}!", tools=[CLOCK], tool_choice="none")["message"]
    assert "tool_calls" not in message


def test_a_call_that_is_cut_says_length(guided: Running) -> None:
    choice = whole(guided, f"{CALL}!", tools=[CLOCK], max_tokens=50)
    assert choice["finish_reason"] == "length"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["arguments"].startswith('{"Z"')


def test_ollama_sends_a_call_whole_and_its_arguments_as_an_object(guided: Running) -> None:
    lines = ollama(guided, f"wait. {CALL}!", tools=[CLOCK])
    calls = [c for line in lines for c in line["message"].get("tool_calls", ())]
    assert calls == [{"function": {"name": "CLOCK", "arguments": {"Z": "CET"}}}]
    assert "".join(line["message"]["content"] for line in lines) == "WAIT."
    assert lines[-1]["done"] and lines[-1]["done_reason"] == "stop"
    (answer,) = ollama(guided, f"{CALL}!", tools=[CLOCK], stream=False)
    assert answer["message"]["tool_calls"] == calls


def test_a_conversation_with_calls_and_results_is_taken(guided: Running) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "CLOCK", "arguments": '{"Z":"U"}'}}
    messages = [
        {"role": "user", "content": ""},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "noon!"},
    ]
    for tools in ([CLOCK], None):
        response = guided.post(CHAT, {"messages": messages, "tools": tools, "temperature": 0})
        assert response.json()["choices"][0]["message"]["content"] == "NOON"


def test_show_tells_of_tools_and_thinking(guided: Running) -> None:
    shown = guided.post("/api/show", {"model": "shouter"}).json()
    assert shown["capabilities"] == ["completion", "tools", "thinking"]
