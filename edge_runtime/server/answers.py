"""A request's answers as an event loop reads them: deltas come from the engine's thread.

Knows the driver and an event loop; knows no HTTP and no wire form.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType

from edge_runtime.engine.driver import EngineDriver, RequestHandle
from edge_runtime.engine.request import ChosenLogprob, Completion, Delta
from edge_runtime.generation.params import SamplingParams
from edge_runtime.guidance.constraint import TokenConstraint

Piece = tuple[int, Delta]


class Answers:
    """One answer or more to a prompt; use it in an ``async with``, which cancels what still runs.

    Args:
        driver: runs the engine.
        prompt_ids: the prompt.
        params: one for each answer.
        new_constraint: what an answer must match, for each anew.

    Raises:
        RunError: the driver is closed.
        GrammarError: a grammar that was kept before cannot be compiled again.
    """

    def __init__(
        self,
        driver: EngineDriver,
        prompt_ids: Sequence[int],
        params: Sequence[SamplingParams],
        new_constraint: Callable[[], TokenConstraint | None] = lambda: None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._come: deque[tuple[int, Delta | Exception]] = deque()
        self._waiter: asyncio.Future[bool] | None = None
        self._woken = False
        self._unfinished = len(params)
        self._handles: list[RequestHandle] = []
        group = object()
        # All before the first is submitted: one that cannot be made again leaves nothing behind.
        constraints = [new_constraint() for _ in params]
        for index, each in enumerate(params):
            self._handles.append(
                driver.submit(
                    prompt_ids,
                    each,
                    group=group if len(params) > 1 else None,
                    listener=lambda item, index=index: self._put(index, item),  # type: ignore[misc]
                    constraint=constraints[index],
                )
            )

    @property
    def unfinished(self) -> int:
        """Answers whose last delta was not read yet."""
        return self._unfinished

    def cancel(self) -> None:
        """Ask the engine to end all of them; their last deltas say so."""
        for handle in self._handles:
            handle.cancel()

    async def next(self, timeout_s: float) -> list[Piece]:
        """What has come since the last time, waiting for it.

        Args:
            timeout_s: how long to wait.

        Returns:
            Deltas with the number of their answer; none if the time is up.

        Raises:
            EdgeRuntimeError: the engine failed an answer or refused the request.
        """
        if not self._come and not await self._wait(timeout_s):
            return []
        pieces: list[Piece] = []
        while self._come:
            index, item = self._come.popleft()
            if isinstance(item, Exception):
                raise item
            self._unfinished -= item.finish_reason is not None
            pieces.append((index, item))
        return pieces

    async def _wait(self, timeout_s: float) -> bool:
        # asyncio.wait_for would make a task for each token.
        waiter: asyncio.Future[bool] = self._loop.create_future()
        self._waiter = waiter
        timer = self._loop.call_later(max(0.0, timeout_s), _settle, waiter, False)
        try:
            return await waiter
        finally:
            timer.cancel()
            self._waiter = None

    def _put(self, index: int, item: Delta | Exception) -> None:
        """In the engine's thread: keep it, and wake the loop unless that is on its way."""
        self._come.append((index, item))
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._woken = False
        if self._waiter is not None and self._come:
            _settle(self._waiter, True)

    async def __aenter__(self) -> Answers:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._unfinished:
            self.cancel()


class Collected:
    """Puts the deltas of answers together again.

    Args:
        count: how many answers.
    """

    def __init__(self, count: int) -> None:
        self._deltas: list[list[Delta]] = [[] for _ in range(count)]

    def add(self, piece: Piece) -> None:
        """Keep a delta."""
        index, delta = piece
        self._deltas[index].append(delta)

    def completions(self) -> list[Completion]:
        """The whole answers, once the last delta of each is there."""
        return [_completion(deltas) for deltas in self._deltas]


def _completion(deltas: Sequence[Delta]) -> Completion:
    last = deltas[-1]
    assert last.finish_reason is not None and last.usage is not None
    logprobs: list[ChosenLogprob] = [p for d in deltas for p in d.logprobs]
    return Completion(
        text="".join(d.text for d in deltas),
        token_ids=tuple(t for d in deltas for t in d.token_ids),
        logprobs=tuple(logprobs),
        finish_reason=last.finish_reason,
        usage=last.usage,
    )


def _settle(waiter: asyncio.Future[bool], value: bool) -> None:
    if not waiter.done():
        waiter.set_result(value)
