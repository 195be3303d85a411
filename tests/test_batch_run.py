"""Lines of a batch that ask for a form or offer tools, over a scripted engine."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.scripted_engine import END, make_engine

from edge_runtime.batch_file import BatchLine
from edge_runtime.batch_run import CHAT_URL, COMPLETION_URL, BatchRun
from edge_runtime.engine.driver import EngineDriver
from edge_runtime.text.chat_template import ChatTemplate

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{# <think> #}"
CLOCK = {"type": "function", "function": {"name": "clock"}}


def reply_to(url: str, **body: Any) -> dict[str, Any]:
    """The response to one line, of a model that would say nothing."""
    template = ChatTemplate(TEMPLATE, special_tokens={})
    engine, _ = make_engine(lambda seen: END, context=2000, chat_template=template)
    content = {"method": "POST", "url": url, "body": {"temperature": 0, **body}}
    line = BatchLine(number=1, id="1", custom_id="a", content=content)
    with EngineDriver(engine) as driver:
        run = BatchRun(engine, driver, iter([line]), parallel=1)
        (answer,) = [answer for answer in run.answers() if answer is not None]
    response: dict[str, Any] = answer.output["response"]
    return response


def chat(**body: Any) -> dict[str, Any]:
    return reply_to(CHAT_URL, messages=[{"role": "user", "content": "Hi"}], **body)


def test_a_line_may_ask_for_a_form():
    pytest.importorskip("llguidance")
    choice = reply_to(COMPLETION_URL, prompt="Hi", regex="yes|no")["body"]["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("no", "stop")
    schema = {"enum": [7]}
    answer = chat(response_format={"type": "json_schema", "json_schema": {"schema": schema}}, n=2)
    assert [c["message"]["content"] for c in answer["body"]["choices"]] == ["7", "7"]


def test_a_line_may_offer_tools():
    pytest.importorskip("llguidance")
    fields = {"tools": [CLOCK], "tool_choice": "required", "parallel_tool_calls": False}
    choice = chat(reasoning_budget=1, **fields)
    (call,) = choice["body"]["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "clock"
    assert json.loads(call["function"]["arguments"]) == {}


def test_a_form_that_cannot_be_kept_is_the_lines_own_error():
    pytest.importorskip("llguidance")
    response = chat(response_format={"type": "json_object", "schema": {"not": {}}})
    assert response["status_code"] == 400
    assert response["body"]["error"]["param"] == "response_format"
    assert "not" in response["body"]["error"]["message"]
