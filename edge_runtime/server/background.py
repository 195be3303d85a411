"""Blocking work for an event loop, in threads that do not keep the process from ending.

Knows no request and no model.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_daemon_thread(work: Callable[[], T], *, name: str) -> T:
    """Run ``work`` in a thread of its own.

    asyncio's own pool would be waited for at the interpreter's end: loading a model, or exporting
    one, takes minutes and cannot be interrupted. Cancelling leaves the thread to itself.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(set_outcome: Callable[[], None]) -> None:
        if not done.done():
            set_outcome()

    def run() -> None:
        try:
            result = work()
        except BaseException as exc:
            failure = exc
            tell(lambda: done.set_exception(failure))
        else:
            tell(lambda: done.set_result(result))

    def tell(set_outcome: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, set_outcome)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await done
