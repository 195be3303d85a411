"""OpenAI's endpoints as a client meets them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.scripted_server import Running

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def chat(text: str = "hi!", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **fields}


def events(response: Any) -> list[Any]:
    """The objects of an event stream; the last is the word DONE."""
    found = []
    for event in response.text.split("\n\n"):
        if event.startswith("data: "):
            text = event[len("data: ") :]
            found.append("DONE" if text == "[DONE]" else json.loads(text))
    return found


def test_a_chat_is_answered_with_counts_and_times(shared: Running) -> None:
    response = shared.post(CHAT, chat("hello there!"))
    body = response.json()
    assert response.status_code == 200
    assert body["object"] == "chat.completion" and body["model"] == "shouter"
    assert body["choices"][0]["message"]["content"] == "HELLO THERE"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == len("HELLO THERE") + 1
    assert body["timings"]["predicted_n"] == len("HELLO THERE") + 1


def test_a_stream_opens_with_the_role_and_closes_with_reason_usage_and_done(
    shared: Running,
) -> None:
    request = chat("abc!", stream=True, stream_options={"include_usage": True})
    response = shared.post(CHAT, request)
    assert response.headers["content-type"].startswith("text/event-stream")
    first, *middle, last, usage, done = events(response)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [c["choices"][0]["delta"]["content"] for c in middle] == ["A", "B", "C"]
    assert last["choices"][0]["delta"] == {} and last["choices"][0]["finish_reason"] == "stop"
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 4
    assert done == "DONE"
    assert len({c["id"] for c in (first, *middle, last, usage)}) == 1
    assert all(c["usage"] is None for c in (first, *middle, last))


def test_a_stream_without_usage_has_none(shared: Running) -> None:
    chunks = events(shared.post(CHAT, chat("abc!", stream=True)))
    assert chunks[-1] == "DONE"
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks[:-1])


def test_a_character_of_several_tokens_comes_whole(shared: Running) -> None:
    chunks = events(shared.post(CHAT, chat("1é日!", stream=True)))[:-1]
    said = [c["choices"][0]["delta"].get("content") for c in chunks]
    assert [s for s in said if s] == ["1", "é", "日"]


def test_streamed_logprobs_are_those_of_the_whole_answer(shared: Running) -> None:
    whole = shared.post(CHAT, chat("ab!", logprobs=True, top_logprobs=1)).json()
    chunks = events(shared.post(CHAT, chat("ab!", logprobs=True, top_logprobs=1, stream=True)))
    streamed = [
        entry
        for chunk in chunks[:-1]
        for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == whole["choices"][0]["logprobs"]["content"]
    assert [e["token"] for e in streamed] == ["A", "B"]


def test_a_completion_streams_offsets_that_go_on(shared: Running) -> None:
    request = {"prompt": "aéb!", "temperature": 0, "logprobs": 0, "stream": True}
    chunks = events(shared.post(COMPLETIONS, request))[:-1]
    logprobs = [c["choices"][0]["logprobs"] for c in chunks if c["choices"][0]["logprobs"]]
    assert [offset for each in logprobs for offset in each["text_offset"]] == [0, 1, 1, 2]
    assert "".join(c["choices"][0]["text"] for c in chunks) == "AéB"


def test_several_answers_come_under_their_numbers(shared: Running) -> None:
    body = shared.post(CHAT, chat("abc!", n=3)).json()
    assert [c["index"] for c in body["choices"]] == [0, 1, 2]
    assert {c["message"]["content"] for c in body["choices"]} == {"ABC"}
    assert body["usage"]["completion_tokens"] == 12
    request = {"prompt": "abc!", "temperature": 0, "n": 2, "stream": True}
    chunks = events(shared.post(COMPLETIONS, request))[:-1]
    for index in (0, 1):
        own = [c["choices"][0]["text"] for c in chunks if c["choices"][0]["index"] == index]
        assert "".join(own) == "ABC"


def test_the_best_of_several_answers_are_returned(shared: Running) -> None:
    body = shared.post(COMPLETIONS, {"prompt": "abc!", "n": 2, "best_of": 4}).json()
    assert [c["index"] for c in body["choices"]] == [0, 1]
    assert all(c["logprobs"] is None for c in body["choices"])


@pytest.mark.parametrize("fields", [{"n": 99}, {"best_of": 99}])
def test_more_answers_than_the_server_gives_are_refused_by_name(
    shared: Running, fields: dict[str, int]
) -> None:
    response = shared.post(CHAT, chat(**fields))
    assert response.status_code == 400 and response.json()["error"]["param"] == next(iter(fields))


@pytest.mark.parametrize(
    "path, body, param",
    [
        (CHAT, {}, "messages"),
        (CHAT, chat(temperature="hot"), "temperature"),
        (CHAT, chat(stream_options={"include_usage": True}), "stream_options"),
        (CHAT, chat(stream=True, stream_options={"include_usage": 1}), None),
        (CHAT, chat(n=0), "n"),
        (COMPLETIONS, {"prompt": 5}, "prompt"),
        (COMPLETIONS, {"prompt": [999_999]}, None),
        (COMPLETIONS, {"prompt": ""}, None),
        (CHAT, {"messages": [{"role": "user", "content": "\ud800"}]}, None),
    ],
)
def test_a_wrong_request_is_a_400_in_openais_form(
    shared: Running, path: str, body: Any, param: str | None
) -> None:
    response = shared.client.post(path, content=json.dumps(body).encode())
    error = response.json()["error"]
    assert response.status_code == 400 and error["type"] == "invalid_request_error"
    assert param is None or error["param"] == param


def test_a_prompt_that_is_too_long_names_both_counts(shared: Running) -> None:
    response = shared.post(CHAT, chat("x" * 300 + "!"))
    error = response.json()["error"]
    assert response.status_code == 400 and error["code"] == "context_length_exceeded"
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (301, 200)
    assert "301" in error["message"] and "200" in error["message"]


def test_a_full_context_ends_with_length(shared: Running) -> None:
    body = shared.post(CHAT, chat("x" * 150 + "!")).json()
    assert body["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"\x00", b'{"messages": NaN}',
        b'{"n": 1' + b"0" * 5000 + b"}", b"[" * 100_000, b'{"a":' * 50_000,
    ],
)  # fmt: skip
def test_a_body_that_is_no_json_object_is_a_400(shared: Running, raw: bytes) -> None:
    response = shared.client.post(CHAT, content=raw)
    assert response.status_code == 400 and response.json()["error"]["message"]


def test_an_unknown_model_is_a_404_that_names_the_known(shared: Running) -> None:
    error = shared.post(CHAT, chat(model="gpt-4o"))
    assert error.status_code == 404
    assert error.json()["error"]["code"] == "model_not_found"
    assert "shouter" in error.json()["error"]["message"]


def test_models_are_listed_and_described(shared: Running) -> None:
    listed = shared.client.get("/v1/models").json()
    assert [m["id"] for m in listed["data"]] == ["shouter"]
    assert shared.client.get("/v1/models/shouter").json() == listed["data"][0]
    assert shared.client.get("/v1/models/other/name").status_code == 404


def test_embeddings_are_refused_in_words(shared: Running) -> None:
    response = shared.post("/v1/embeddings", {"model": "shouter", "input": "x"})
    assert response.status_code == 501 and "no embeddings" in response.json()["error"]["message"]


@pytest.mark.parametrize("path, status", [("/nowhere", 404), ("/v1/chat/completions", 405)])
def test_a_wrong_path_or_method_is_told_in_openais_form(
    shared: Running, path: str, status: int
) -> None:
    response = shared.client.get(path)
    assert response.status_code == status and response.json()["error"]["code"]


def test_a_defect_is_told_without_its_words_and_the_server_goes_on(start: Any) -> None:
    running = start()
    response = running.post(CHAT, chat("defect!"))
    assert response.status_code == 500 and "secret" not in response.text
    assert running.post(CHAT, chat("next!")).status_code == 200
    assert len(running.script.opened) == 2


def test_a_client_that_names_no_model_gets_the_first(shared: Running) -> None:
    assert shared.post(CHAT, chat()).json()["model"] == "shouter"
