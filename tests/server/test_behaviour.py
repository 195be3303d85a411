"""What a server does under way: clients that leave, full queues, times that are up, its end."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from support.scripted_server import Running, Script, running_server, wait_until_ready

from edge_runtime.engine.metrics import StepKind
from edge_runtime.errors import MemoryCapError, RunError
from edge_runtime.server.models import ServedModel

CHAT = "/v1/chat/completions"
LONG = "x" * 150


def chat(text: str = "hi!", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **fields}


def connection(running: Running) -> socket.socket:
    address = urlsplit(running.url)
    return socket.create_connection((address.hostname, address.port or 0), timeout=20)


def send_request(opened: socket.socket, body: dict[str, Any], path: str = CHAT) -> None:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n\r\n"
    opened.sendall(head.encode() + data)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.005)


def gauges(running: Running) -> tuple[int, int]:
    found = running.script.engines[-1].metrics.snapshot().gauges
    return found.running, found.waiting


# Clients that leave


def test_a_client_that_leaves_in_decode_frees_its_slot(start: Any) -> None:
    running = start(Script(delay_s=0.01, context=400))
    with connection(running) as opened:
        send_request(opened, chat(LONG + "!", stream=True))
        opened.recv(1000)
        assert gauges(running)[0] == 1
    running.wait_until_idle()
    finished = running.script.engines[0].metrics.snapshot().finished
    assert [r.value for r, n in finished.items() if n] == ["length", "cancelled"]  # with warm-up


def test_a_client_that_leaves_a_whole_answer_frees_its_slot(start: Any) -> None:
    running = start(Script(delay_s=0.01, context=400))
    with connection(running) as opened:
        send_request(opened, chat(LONG + "!"))
        wait_for(lambda: gauges(running)[0] == 1)
    running.wait_until_idle()


def test_a_client_that_leaves_in_prefill_frees_its_slot(start: Any) -> None:
    running = start(Script(delay_s=0.2, context=2000))
    with connection(running) as opened:
        send_request(opened, chat("x" * 1500 + "!", stream=True))
        wait_for(lambda: gauges(running)[0] == 1)
    running.wait_until_idle()
    steps = running.script.engines[0].metrics.snapshot().steps[StepKind.PREFILL]
    assert steps < 15, "the whole prompt was read for nobody"


def test_a_queued_clients_leaving_touches_nobody(start: Any) -> None:
    running = start(Script(delay_s=0.01, slots=1, context=400))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(running.post, CHAT, chat(LONG + "!"))
        wait_for(lambda: gauges(running)[0] == 1)
        with connection(running) as opened:
            send_request(opened, chat("queued!"))
            wait_for(lambda: gauges(running) == (1, 1))
        wait_for(lambda: gauges(running)[1] == 0)
        assert not first.done()
        assert first.result().json()["choices"][0]["message"]["content"] == LONG.upper()
    running.wait_until_idle()


def test_a_client_that_closes_its_half_is_gone(start: Any) -> None:
    running = start(Script(delay_s=0.01, context=400))
    with connection(running) as opened:
        send_request(opened, chat(LONG + "!", stream=True))
        wait_for(lambda: gauges(running)[0] == 1)
        opened.shutdown(socket.SHUT_WR)
        running.wait_until_idle()


# Room


def test_a_full_queue_answers_503_and_says_when_to_come_again(start: Any) -> None:
    running = start(Script(delay_s=0.02, slots=1, context=400), max_queue=1)
    with ThreadPoolExecutor(2) as pool:
        taken = [pool.submit(running.post, CHAT, chat(LONG + "!")) for _ in range(2)]
        wait_for(lambda: gauges(running) == (1, 1))
        refused = running.post(CHAT, chat())
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "queue_full"
        assert int(refused.headers["retry-after"]) >= 1
        assert [one.result().status_code for one in taken] == [200, 200]
    assert running.post(CHAT, chat()).status_code == 200


def test_streams_that_run_together_are_not_mixed(start: Any) -> None:
    running = start(Script(slots=3, delay_s=0.001))
    prompts = [f"mark {i} of many {i}!" for i in range(24)]
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda p: running.post(CHAT, chat(p)).json(), prompts))
    said = [a["choices"][0]["message"]["content"] for a in answers]
    assert said == [p[:-1].upper() for p in prompts]


# Time


def test_a_silent_stream_gets_comments(start: Any) -> None:
    running = start(Script(delay_s=0.1), ping_interval_s=0.02)
    text = running.post(CHAT, chat("a!", stream=True)).text
    assert text.startswith(": ping\n\n") and "data: [DONE]" in text


def test_a_request_that_takes_too_long_is_ended_and_told(start: Any) -> None:
    running = start(Script(delay_s=0.02, context=400), request_timeout_s=0.3)
    whole = running.post(CHAT, chat(LONG + "!"))
    assert whole.status_code == 504 and whole.json()["error"]["code"] == "timeout"
    running.wait_until_idle()
    streamed = running.post(CHAT, chat(LONG + "!", stream=True))
    last = streamed.text.strip().split("\n\n")[-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "timeout"
    running.wait_until_idle()


def test_a_slow_body_is_a_408(start: Any) -> None:
    running = start(body_timeout_s=0.1)
    with connection(running) as opened:
        opened.sendall(
            f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{{".encode()
        )
        assert b" 408 " in opened.recv(1000).split(b"\r\n")[0]


def test_a_head_that_does_not_come_closes_the_connection(start: Any) -> None:
    running = start(header_timeout_s=0.2)
    with connection(running) as silent, connection(running) as slow:
        slow.sendall(b"GET /health HTTP/1.1\r\nhost: ")
        assert silent.recv(100) == b"" and slow.recv(100) == b""
    with connection(running) as kept:
        for _ in range(2):
            kept.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            answer = b""
            while not answer.endswith(b"}"):
                answer += kept.recv(1000)
            assert answer.startswith(b"HTTP/1.1 200 ")
        kept.sendall(b"GET /hea")
        assert kept.recv(1000) == b""


@pytest.mark.parametrize("stated", [True, False])
def test_a_body_that_is_too_large_is_a_413(start: Any, stated: bool) -> None:
    running = start(max_body_bytes=1000)
    data = b"{" + b" " * 5000 + b"}"
    content: Any = data if stated else iter([data[:3000], data[3000:]])
    response = running.client.post(CHAT, content=content)
    assert response.status_code == 413 and "1000" in response.json()["error"]["message"]


# Loading


def test_until_the_model_is_loaded_all_say_so() -> None:
    go = threading.Event()
    script = Script(before_load=lambda served: go.wait(20) and None)
    with running_server(script) as running:
        try:
            health = running.client.get("/health")
            assert health.status_code == 503
            assert health.json() == {
                "error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}
            }
            asked = running.post(CHAT, chat())
            assert asked.status_code == 503 and asked.headers["retry-after"]
        finally:
            go.set()
        wait_until_ready(running)
        assert running.post(CHAT, chat()).status_code == 200
        assert running.client.get("/health").json()["status"] == "ok"


def test_a_first_model_that_does_not_load_ends_the_server() -> None:
    def refuse(served: ServedModel) -> None:
        raise RunError("scripted not to load")

    with running_server(Script(before_load=refuse)) as running:
        running.thread.join(20)
        assert isinstance(running.server.failure, RunError)


def test_another_model_is_loaded_when_it_is_asked_for_and_goes_when_idle(start: Any) -> None:
    running = start(Script(names=("one", "two"), keep_alive_s=0.1))
    assert [name for name, _ in running.script.opened] == ["one"]
    assert running.post(CHAT, chat(model="two")).json()["model"] == "two"
    wait_for(lambda: not running.context.pool.loaded)
    assert running.client.get("/health").status_code == 200
    assert running.post(CHAT, chat(model="one")).status_code == 200
    assert [name for name, _ in running.script.opened] == ["one", "two", "one"]


def test_a_model_in_use_does_not_go(start: Any) -> None:
    running = start(Script(delay_s=0.02, context=400, keep_alive_s=0.05))
    answer = running.post(CHAT, chat(LONG + "!"))
    assert answer.json()["choices"][0]["message"]["content"] == LONG.upper()


def test_an_idle_model_gives_way_where_the_cap_is_too_small_for_both(start: Any) -> None:
    def fits_alone(served: ServedModel) -> None:
        if script.engines and served.name == "two" and len(asked) < 1:
            asked.append(served.name)
            raise MemoryCapError(100, 200)

    asked: list[str] = []
    script = Script(names=("one", "two"), before_load=fits_alone, memory_cap_bytes=1000)
    running = start(script)
    assert running.post(CHAT, chat(model="two")).status_code == 200
    assert [m.served.name for m in running.context.pool.loaded] == ["two"]


def test_a_model_that_fits_beside_none_in_use_has_to_wait(start: Any) -> None:
    def never(served: ServedModel) -> None:
        if served.name == "two":
            raise MemoryCapError(100, 200)

    script = Script(
        names=("one", "two"), before_load=never, memory_cap_bytes=1000, delay_s=0.02, context=400
    )
    running = start(script)
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(running.post, CHAT, chat(LONG + "!"))
        wait_for(lambda: gauges(running)[0] == 1)
        refused = running.post(CHAT, chat(model="two"))
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "no_memory"
        assert busy.result().status_code == 200


# The end


def test_at_the_end_running_answers_finish() -> None:
    with running_server(Script(delay_s=0.005), shutdown_timeout_s=10) as running:
        wait_until_ready(running)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(running.post, CHAT, chat("x" * 80 + "!"))
            wait_for(lambda: gauges(running)[0] == 1)
            running.server.end()
            assert answer.result().json()["choices"][0]["finish_reason"] == "stop"
        running.thread.join(20)
        with pytest.raises(httpx.ConnectError):
            httpx.get(running.url + "/health")


def test_at_the_deadline_running_answers_are_ended_and_told() -> None:
    script = Script(delay_s=0.05, context=2000)
    with running_server(script, shutdown_timeout_s=0.1) as running:
        wait_until_ready(running)
        with ThreadPoolExecutor(2) as pool:
            streamed = pool.submit(running.post, CHAT, chat("x" * 500 + "!", stream=True))
            whole = pool.submit(running.post, CHAT, chat("x" * 500 + "!"))
            wait_for(lambda: gauges(running)[0] == 2)
            running.server.end()
            last = streamed.result().text.strip().split("\n\n")[-1]
            assert json.loads(last.removeprefix("data: "))["error"]["code"] == "closing"
            assert whole.result().status_code == 503


# What is logged


def test_requests_are_logged_where_asked_and_never_their_words(
    start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    running = start(log_requests=True, api_keys=("sesame",))
    header = {"authorization": "Bearer sesame"}
    running.post(CHAT, chat("private words!"), headers=header)
    running.post(CHAT, chat("private words!", temperature="hot"), headers=header)
    own = [r.getMessage() for r in caplog.records if r.name == "edge_runtime.server"]
    assert any("chat 200 answered" in line and "generated=14" in line for line in own)
    said = "\n".join(own)
    assert "private" not in said.lower() and "sesame" not in said


def test_without_being_asked_no_request_is_logged(
    start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="edge_runtime.server")
    start().post(CHAT, chat())
    assert not [r for r in caplog.records if "200" in r.getMessage()]
