"""Health, metrics, tokens, templates, properties, the page and the document."""

from __future__ import annotations

from typing import Any

import pytest
from support.scripted_server import Running, Script


def test_tokens_go_and_come_back(shared: Running) -> None:
    asked = {"content": "hé<|end|>"}
    tokens = shared.post("/tokenize", asked).json()["tokens"]
    assert tokens == [104, 0xC3, 0xA9, 257]
    assert shared.post("/detokenize", {"tokens": tokens}).json() == {"content": "hé<|end|>"}


def test_tokens_may_have_their_pieces_and_special_ones_may_be_text(shared: Running) -> None:
    asked = {"content": "é", "with_pieces": True, "add_special": True}
    assert shared.post("/tokenize", asked).json()["tokens"] == [
        {"id": 256, "piece": ""},
        {"id": 0xC3, "piece": [0xC3]},
        {"id": 0xA9, "piece": [0xA9]},
    ]
    plain = shared.post("/tokenize", {"content": "<|end|>", "parse_special": False})
    assert plain.json()["tokens"] == list(b"<|end|>")


@pytest.mark.parametrize(
    "path, body, param",
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 5}, "content"),
        ("/detokenize", {"tokens": [1, "x"]}, "tokens[1]"),
        ("/detokenize", {"tokens": [999]}, "tokens[0]"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/apply-template", {"messages": []}, "messages"),
        (
            "/apply-template",
            {"messages": [{"role": "user", "content": "x"}], "tools": [1]},
            "tools",
        ),
    ],
)
def test_wrong_fields_are_named(shared: Running, path: str, body: Any, param: str) -> None:
    response = shared.post(path, body)
    assert response.status_code == 400 and response.json()["error"]["param"] == param


def test_a_template_is_applied(shared: Running) -> None:
    asked = {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"mark": "b"}}
    assert shared.post("/apply-template", asked).json() == {"prompt": "ab"}


def test_a_model_without_a_template_says_so(start: Any) -> None:
    running = start(Script(chat_template=None))
    messages = [{"role": "user", "content": "a!"}]
    for path in ("/apply-template", "/v1/chat/completions"):
        refused = running.post(path, {"messages": messages})
        assert refused.status_code == 400 and "template" in refused.json()["error"]["message"]
    assert running.post("/v1/completions", {"prompt": "a!"}).status_code == 200


def test_properties_tell_how_a_model_is_run(shared: Running) -> None:
    found = shared.client.get("/props").json()
    assert (found["n_ctx"], found["total_slots"]) == (200, 2)
    assert "content" in found["chat_template"] and found["model_alias"] == "shouter"
    assert shared.client.get("/props?model=other").status_code == 404


def value(text: str, name: str) -> float:
    (line,) = [x for x in text.splitlines() if x.startswith(f"edge_runtime_{name} ")]
    return float(line.rsplit(" ", 1)[1])


def test_metrics_count_requests_and_tokens(start: Any) -> None:
    running = start(Script(memory_cap_bytes=12345))
    running.post("/v1/completions", {"prompt": "abc!", "temperature": 0})
    running.post("/v1/completions", {"prompt": 5})
    text = running.client.get("/metrics").text
    at = 'endpoint="completions",outcome='
    assert value(text, f'requests_total{{{at}"answered"}}') == 1
    assert value(text, f'requests_total{{{at}"refused"}}') == 1
    # Warming up wrote two more.
    assert value(text, 'generated_tokens_total{model="shouter"}') == 4 + 2
    assert value(text, 'time_to_first_token_seconds_count{model="shouter"}') == 2
    assert value(text, 'inter_token_seconds_bucket{le="+Inf",model="shouter"}') == 3 + 1
    assert value(text, 'running_sequences{model="shouter"}') == 0
    assert value(text, 'queue_depth{model="shouter"}') == 0
    assert value(text, 'kv_cache_capacity_tokens{model="shouter"}') == 2 * 200
    assert value(text, "memory_cap_bytes") == 12345


def test_browsers_get_the_page_under_a_strict_policy(shared: Running) -> None:
    response = shared.client.get("/", headers={"accept": "text/html,*/*;q=0.8"})
    assert response.headers["content-type"].startswith("text/html")
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    assert "http" not in policy and "*" not in policy
    for inline in (" style=", " onclick=", " onload=", "javascript:"):
        assert inline not in response.text, "the policy would stop it"
    assert "src=" not in response.text and "//cdn" not in response.text


def test_the_document_describes_every_route_and_no_body_that_is_not_read(shared: Running) -> None:
    document = shared.client.get("/openapi.json").json()
    described = set(document["paths"])
    assert {"/v1/chat/completions", "/api/chat", "/health", "/metrics", "/props"} <= described
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert "422" not in operation["responses"], path
            assert ("requestBody" in operation) == (method == "post"), path
