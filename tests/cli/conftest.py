"""Standard input for tests: a real pipe, closed again afterwards."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest


@pytest.fixture
def give_stdin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes | None], None]]:
    """Make standard input a pipe that holds some bytes (few enough for its buffer), or none."""
    with ExitStack() as opened:

        def give(data: bytes | None) -> None:
            if data is None:
                monkeypatch.setattr(sys, "stdin", None)
                return
            reading, writing = os.pipe()
            with os.fdopen(writing, "wb") as stream:
                stream.write(data)
            text = io.TextIOWrapper(os.fdopen(reading, "rb"), "utf-8")
            monkeypatch.setattr(sys, "stdin", opened.enter_context(text))

        yield give
