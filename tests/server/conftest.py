"""Servers for tests, where what they need is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

for needed, extra in (
    ("fastapi", "serve"),
    ("uvicorn", "serve"),
    ("prometheus_client", "serve"),
    ("httpx", "test"),
):
    pytest.importorskip(needed, reason=f"needs the {extra} extra")

from support.scripted_server import (  # noqa: E402
    Running,
    Script,
    running_server,
    wait_until_ready,
)


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    """Starts servers, ready ones, and ends them with the test."""
    with ExitStack() as stack:

        def go(script: Script | None = None, **settings: Any) -> Running:
            running = stack.enter_context(running_server(script, **settings))
            wait_until_ready(running)
            return running

        yield go


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    """One ready server for tests that change nothing in it."""
    with running_server() as running:
        wait_until_ready(running)
        yield running
