"""A real server on a free port, over an engine whose runner is scripted.

The model shouts: it answers a prompt that ends in ``!`` with the same text in capitals.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from support.scripted_engine import END, make_engine

from edge_runtime.engine.engine import Engine, EngineOptions
from edge_runtime.server.context import ServerContext
from edge_runtime.server.embedders import Embedders
from edge_runtime.server.listening import tcp_socket, url_of
from edge_runtime.server.models import FOREVER, ModelPool, ServedModel
from edge_runtime.server.serving import HttpServer
from edge_runtime.server.settings import ServerSettings
from edge_runtime.text.chat_template import ChatTemplate

TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}{{ mark or '' }}"


def shout(seen: Sequence[int]) -> int:
    """A prompt ends at its exclamation mark; what follows repeats it in capitals, then the end."""
    prompt = bytes(t for t in seen if t < 256).partition(b"!")[0]
    said = len(seen) - len(prompt) - 1
    if prompt == b"defect":
        raise ZeroDivisionError("a secret")
    return (*prompt.upper(), END)[min(said, len(prompt))]


@dataclass
class Script:
    """How the models behave, and what became of them."""

    delay_s: float = 0.0
    slots: int = 2
    context: int = 200
    names: tuple[str, ...] = ("shouter",)
    keep_alive_s: float = FOREVER
    memory_cap_bytes: int | None = None
    before_load: Callable[[ServedModel], None] = lambda served: None
    chat_template: ChatTemplate | None = field(
        default_factory=lambda: ChatTemplate(TEMPLATE, special_tokens={})
    )
    opened: list[tuple[str, int | None]] = field(default_factory=list)
    engines: list[Engine] = field(default_factory=list)

    def open(self, served: ServedModel, cap_bytes: int | None) -> Engine:
        self.before_load(served)
        self.opened.append((served.name, cap_bytes))
        engine, runner = make_engine(
            shout,
            context=self.context,
            options=EngineOptions(slots=self.slots),
            chat_template=self.chat_template,
        )
        runner._before_run = lambda number: time.sleep(self.delay_s)
        self.engines.append(engine)
        return engine


@dataclass(frozen=True)
class Running:
    """A server that runs in a thread."""

    url: str
    client: Any
    server: HttpServer
    context: ServerContext
    script: Script
    thread: threading.Thread

    def post(self, path: str, body: Any, **more: Any) -> Any:
        return self.client.post(path, json=body, **more)

    def wait_until_idle(self) -> None:
        """Until no engine has work; fails if that never comes."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            gauges = [e.metrics.snapshot().gauges for e in self.script.engines]
            if not any(g.running or g.waiting for g in gauges):
                return
            time.sleep(0.01)
        raise AssertionError("slots are still taken")


@contextmanager
def running_server(
    script: Script | None = None, embedders: Embedders | None = None, **settings: Any
) -> Iterator[Running]:
    script = script or Script()
    pool = ModelPool(
        [ServedModel(name, name) for name in script.names],
        open_model=script.open,
        memory_cap_bytes=script.memory_cap_bytes,
        keep_alive_s=script.keep_alive_s,
    )
    settings.setdefault("shutdown_timeout_s", 0.2)
    context = ServerContext(pool, ServerSettings(**settings), embedders)
    listening = tcp_socket("127.0.0.1", 0)
    server = HttpServer(context, over_network=True)
    thread = threading.Thread(target=_run, args=(server, listening), name="server")
    thread.start()
    url = url_of(listening)
    try:
        with httpx.Client(base_url=url, timeout=30) as client:
            yield Running(url, client, server, context, script, thread)
    finally:
        server.end()
        thread.join(20)
        listening.close()
        assert not thread.is_alive(), "the server does not end"


def _run(server: HttpServer, listening: Any) -> None:
    asyncio.run(server.serve(sockets=[listening]))


def wait_until_ready(running: Running) -> None:
    deadline = time.monotonic() + 20
    while running.client.get("/health").status_code != 200:
        assert time.monotonic() < deadline, "the server does not get ready"
        time.sleep(0.01)
