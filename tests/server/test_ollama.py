"""Ollama's endpoints as a client meets them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.scripted_server import Running, Script

from edge_runtime.server.models import FOREVER

COMMON = {"model": "shouter", "options": {"temperature": 0}}
HI = [{"role": "user", "content": "hi!"}]


def lines(response: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in response.text.splitlines()]


def test_a_chat_streams_lines_and_the_last_has_counts_and_times(shared: Running) -> None:
    response = shared.post("/api/chat", {**COMMON, "messages": HI})
    assert response.headers["content-type"].startswith("application/x-ndjson")
    *said, last = lines(response)
    assert [x["message"]["content"] for x in said] == ["H", "I"]
    assert not any(x["done"] for x in said)
    assert last["done"] and last["done_reason"] == "stop" and last["eval_count"] == 3
    for name in ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration"):
        assert isinstance(last[name], int)
    assert last["prompt_eval_count"] == 3


def test_a_generation_comes_whole_where_that_is_asked(shared: Running) -> None:
    body = shared.post("/api/generate", {**COMMON, "prompt": "abc!", "stream": False}).json()
    assert body["response"] == "ABC" and body["done"] and "context" not in body


def test_a_raw_prompt_skips_the_template_and_a_system_text_goes_before(shared: Running) -> None:
    asked = {**COMMON, "stream": False, "prompt": "b!", "system": "a"}
    assert shared.post("/api/generate", asked).json()["response"] == "AB"
    assert shared.post("/api/generate", {**asked, "raw": True}).json()["response"] == "B"


@pytest.mark.parametrize("name", ["shouter", "shouter:latest"])
def test_a_name_may_have_its_tag(shared: Running, name: str) -> None:
    body = {**COMMON, "model": name, "messages": HI, "stream": False}
    assert shared.post("/api/chat", body).json()["model"] == name


def test_an_unknown_model_is_a_404_in_ollamas_form(shared: Running) -> None:
    response = shared.post("/api/chat", {"model": "x", "messages": HI})
    assert response.status_code == 404 and "not found" in response.json()["error"]


@pytest.mark.parametrize(
    "fields, says",
    [
        ({"options": {"temperature": "hot"}}, "options.temperature"),
        ({"options": {"mirostat": 1}}, "options.mirostat"),
        ({"options": {"num_ctx": "x"}}, "options.num_ctx"),
        ({"options": {"repeat_penalty": 1.2, "repeat_last_n": 64}}, "options.repeat_last_n"),
        ({"options": []}, "options"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "images"),
        ({"keep_alive": "soon"}, "keep_alive"),
        ({"stream": "yes"}, "stream"),
        ({"model": None}, "model"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    shared: Running, fields: dict[str, Any], says: str
) -> None:
    response = shared.post("/api/chat", {"model": "shouter", "messages": HI, **fields})
    assert response.status_code == 400 and says in response.json()["error"]


def test_what_changes_no_answer_is_accepted(shared: Running) -> None:
    options = {
        "num_ctx": 8192, "num_thread": 2, "num_gpu": 1, "repeat_last_n": 64, "num_predict": -1,
        "temperature": 0, "stop": [], "mirostat": 0,
    }  # fmt: skip
    body = {
        "model": "shouter", "messages": HI, "options": options, "keep_alive": "-1s",
        "think": False, "tools": [], "format": "", "stream": False,
    }  # fmt: skip
    assert shared.post("/api/chat", body).json()["message"]["content"] == "HI"


def test_the_probe_and_the_lists(shared: Running) -> None:
    assert shared.client.get("/").text == "Ollama is running"
    assert shared.client.head("/").status_code == 200
    (tag,) = shared.client.get("/api/tags").json()["models"]
    assert tag["name"] == "shouter:latest" and len(tag["digest"]) == 64
    (loaded,) = shared.client.get("/api/ps").json()["models"]
    assert loaded["name"] == tag["name"] and loaded["context_length"] == 200
    shown = shared.post("/api/show", {"model": "shouter"}).json()
    assert "completion" in shown["capabilities"] and "content" in shown["template"]
    assert shared.client.get("/api/version").json()["version"]


def test_embeddings_and_the_store_are_refused_in_words(shared: Running) -> None:
    asked = {"model": "shouter", "input": "x"}
    assert shared.post("/api/embed", asked).status_code == 501
    assert "started with" in shared.post("/api/pull", {"model": "x"}).json()["error"]


def test_a_request_without_words_loads_and_unloads(start: Any) -> None:
    running = start(Script(names=("one", "two")))
    assert running.post("/api/generate", {"model": "two"}).json()["done_reason"] == "load"
    names = [m["name"] for m in running.client.get("/api/ps").json()["models"]]
    assert names == ["one:latest", "two:latest"]
    gone = running.post("/api/chat", {"model": "two", "messages": [], "keep_alive": 0}).json()
    assert gone["done_reason"] == "unload" and gone["message"]["content"] == ""
    assert len(running.client.get("/api/ps").json()["models"]) == 1
    assert running.context.pool.loaded[0].keep_alive_s == FOREVER
