"""Who may come in."""

from __future__ import annotations

from typing import Any

import pytest
from support.scripted_server import Running

KEYS = ("alpha", "beta-key")
CHAT = {"messages": [{"role": "user", "content": "hi!"}]}


@pytest.fixture
def locked(start: Any) -> Running:
    running: Running = start(api_keys=KEYS)
    return running


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer alpha"},
        {"authorization": "bearer beta-key"},
        {"x-api-key": "beta-key"},
    ],
)
def test_any_key_opens_in_either_header(locked: Running, headers: dict[str, str]) -> None:
    assert locked.post("/v1/chat/completions", CHAT, headers=headers).status_code == 200
    assert locked.client.get("/metrics", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": "alpha"},
        {"authorization": "Bearer alph"},
        {"authorization": "Bearer alpha beta-key"},
        {"x-api-key": "ALPHA"},
    ],
)
def test_without_a_key_all_but_health_and_the_page_is_closed(
    locked: Running, headers: dict[str, str]
) -> None:
    refused = locked.post("/v1/chat/completions", CHAT, headers=headers)
    assert refused.status_code == 401 and refused.json()["error"]["code"] == "invalid_api_key"
    assert refused.headers["www-authenticate"] == "Bearer"
    for path in ("/metrics", "/props", "/openapi.json", "/api/tags", "/v1/models"):
        assert locked.client.get(path, headers=headers).status_code == 401
    assert locked.client.get("/health", headers=headers).status_code == 200
    assert locked.client.get("/", headers=headers).status_code == 200


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1", "192.168.1.7:80"])
def test_addresses_and_own_names_are_known(shared: Running, host: str) -> None:
    assert shared.client.get("/v1/models", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "[", "a:b:c"])
def test_another_name_is_refused_because_a_page_can_rebind_one(shared: Running, host: str) -> None:
    refused = shared.client.get("/v1/models", headers={"host": host})
    assert refused.status_code == 403


def test_a_name_may_be_allowed(start: Any) -> None:
    running = start(allowed_hosts=("Device.example",))
    assert running.client.get("/v1/models", headers={"host": "device.example"}).status_code == 200


def test_with_a_key_any_name_will_do(locked: Running) -> None:
    headers = {"host": "device.example", "x-api-key": "alpha"}
    assert locked.client.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost:1", "app://x"]
)
def test_pages_of_other_origins_are_refused(shared: Running, origin: str) -> None:
    refused = shared.post("/v1/chat/completions", CHAT, headers={"origin": origin})
    assert refused.status_code == 403
    assert "access-control-allow-origin" not in refused.headers
    preflight = shared.client.options("/v1/models", headers={"origin": origin})
    assert preflight.status_code == 403


def test_a_cross_site_request_without_an_origin_is_refused(shared: Running) -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert shared.client.get("/v1/models", headers=headers).status_code == 403
    followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert shared.client.get("/", headers=followed).status_code == 200


def test_the_servers_own_page_is_no_other_origin(shared: Running) -> None:
    headers = {"origin": shared.url, "sec-fetch-site": "same-origin"}
    assert shared.post("/v1/chat/completions", CHAT, headers=headers).status_code == 200


def test_an_allowed_origin_gets_what_its_browser_asks_for(start: Any) -> None:
    running = start(allowed_origins=("https://good.example",), api_keys=KEYS)
    origin = {"origin": "https://good.example"}
    preflight = running.client.options("/v1/chat/completions", headers=origin)
    assert preflight.status_code == 200
    assert "authorization" in preflight.headers["access-control-allow-headers"]
    answer = running.post(
        "/v1/chat/completions", CHAT, headers={**origin, "authorization": "Bearer alpha"}
    )
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == origin["origin"]
    refused = running.post("/v1/chat/completions", CHAT, headers=origin)
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == origin["origin"]
