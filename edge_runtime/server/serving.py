"""Runs the application on a socket until it is asked to end.

uvicorn speaks HTTP. What it lacks is here: a limit on how long a request's head may take, and an
end that lets running requests finish until a deadline, then tells them and goes. Knows sockets and
signals; knows no route.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from edge_runtime.server.access import Access
from edge_runtime.server.app import make_app
from edge_runtime.server.context import ServerContext

# Connections: each costs a descriptor and some 50 KB; beyond it uvicorn answers 503 by itself.
_MAX_CONNECTIONS = 1000
_MAX_HEAD_BYTES = 32 * 1024
_KEEP_ALIVE_S = 75  # longer than the pauses of a client that polls once a minute
# For cancelled requests to say so, before uvicorn closes their connections.
_LAST_WORDS_S = 3


def serve(context: ServerContext, listening: socket.socket, *, over_network: bool) -> None:
    """Serve until SIGTERM or Ctrl-C; blocks, and takes both signals: for the main thread.

    Args:
        context: the server's parts.
        listening: the socket, which is closed at the end.
        over_network: False for a Unix socket.

    Raises:
        EdgeRuntimeError: the first model did not load.
        KeyboardInterrupt: Ctrl-C ended it.
    """
    server = HttpServer(context, over_network=over_network)
    # uvicorn raises the signal again once it has ended; that was what was asked for, so it counts
    # as done. Ctrl-C stays what it is.
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        server.run(sockets=[listening])
    finally:
        signal.signal(signal.SIGTERM, before)
        listening.close()
    if server.failure is not None:
        raise server.failure


class HttpServer(uvicorn.Server):
    """A server that ends its requests by a deadline.

    Args:
        context: the server's parts.
        over_network: False for a Unix socket.
    """

    def __init__(self, context: ServerContext, *, over_network: bool) -> None:
        settings = context.settings
        app = Access(
            make_app(context, on_failed_start=self._fail), settings, over_network=over_network
        )
        config = uvicorn.Config(
            app,
            http=_protocol(settings.header_timeout_s),
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_MAX_CONNECTIONS,
            h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=int(settings.shutdown_timeout_s) + _LAST_WORDS_S,
        )
        super().__init__(config)
        self._context = context
        self.failure: BaseException | None = None
        """Why the first model did not load."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: take no further request; at the deadline, or a second signal, end the rest."""
        if self.should_exit:
            self._soon(self._context.cancel_all)
        super().handle_exit(sig, frame)
        self._soon(self._drain)

    def end(self) -> None:
        """As SIGTERM does; for any thread."""
        self.should_exit = True
        self._soon(self._drain)

    def _fail(self, exc: BaseException) -> None:
        self.failure = exc
        self.should_exit = True

    def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._context.pool.closing:
            self._context.log.say("shutting down")
        self._context.pool.begin_closing()
        loop.call_later(self._context.settings.shutdown_timeout_s, self._context.cancel_all)

    def _soon(self, act: Callable[[], None]) -> None:
        # Signals come in the main thread between any two instructions: the loop does the work.
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(act)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, and remembers its loop for :meth:`handle_exit`."""
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)


def _protocol(header_timeout_s: float) -> type[asyncio.Protocol]:
    class Protocol(H11Protocol):
        """HTTP/1.1 that closes a connection whose request's head does not arrive in time.

        Connections that send nothing would otherwise stay for ever, and be all that there are.
        """

        _head_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._await_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            # A cycle is there once a head was read; a finished one is the request before.
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop_waiting()
            elif self._head_timer is None:
                self._await_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _await_head(self) -> None:
            self._head_timer = self.loop.call_later(header_timeout_s, self.transport.close)

        def _stop_waiting(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

    return Protocol
