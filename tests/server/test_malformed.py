"""Whatever is sent, the server goes on."""

from __future__ import annotations

import random
from typing import Any
from urllib.parse import urlsplit

from support.malformed import send
from support.scripted_server import Script


def test_malformed_requests_leave_the_server_serving(start: Any) -> None:
    running = start(Script(slots=2, context=100))
    address = urlsplit(running.url)
    rng = random.Random(7)
    came = [send((address.hostname or "", address.port or 0), rng) for _ in range(150)]
    assert "400" in came and "500" not in came
    answer = running.post("/v1/completions", {"prompt": "fine!", "temperature": 0})
    assert answer.json()["choices"][0]["text"] == "FINE"
    running.wait_until_idle()
