"""An engine in a thread of its own: submit from anywhere, read deltas, cancel at any time.

The thread that asks stays free to take Ctrl-C or to serve others. Knows queues; knows no array.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

from edge_runtime.engine.core import EngineCore
from edge_runtime.engine.request import Delta
from edge_runtime.engine.sequence import Sequence as EngineSequence
from edge_runtime.errors import RunError
from edge_runtime.generation.params import SamplingParams
from edge_runtime.guidance.constraint import TokenConstraint

Listener = Callable[[Delta | Exception], None]

# A wait without a limit cannot be interrupted by Ctrl-C on every system.
_POLL_S = 0.5


class RequestHandle:
    """One request: iterate it for its deltas; iterating raises the request's error if it fails.

    Iterating again goes on where the last time ended, and ends at once when all was read. With a
    listener there is nothing to iterate.
    """

    def __init__(
        self,
        engine: EngineCore,
        prompt_ids: Sequence[int],
        params: SamplingParams | None,
        listener: Listener | None = None,
        priority: int = 0,
        constraint: TokenConstraint | None = None,
        group: object | None = None,
    ) -> None:
        self._engine = engine
        self._prompt_ids = prompt_ids
        self._params = params
        self._priority = priority
        self._constraint = constraint
        self._group = group
        self._deltas: queue.SimpleQueue[Delta | Exception] = queue.SimpleQueue()
        self._listener = listener or self._deltas.put
        self._sequence: EngineSequence | None = None
        self._cancel_requested = False
        self.finished = False
        """Whether the engine has passed the last delta, or an error."""

    def __iter__(self) -> Iterator[Delta]:
        while True:
            # Read first: whatever was passed before it became true is in the queue.
            finished = self.finished
            try:
                delta = self._deltas.get(not finished, _POLL_S)
            except queue.Empty:
                if finished:
                    return
                continue
            if isinstance(delta, Exception):
                raise delta
            yield delta
            if delta.finish_reason is not None:
                return

    def cancel(self) -> None:
        """Stop the request, in the queue, between steps or inside one. Safe from any thread."""
        self._cancel_requested = True
        if self._sequence is not None:
            self._engine.cancel(self._sequence)

    # The engine's thread alone calls what follows.

    def start(self) -> None:
        """Hand the request to the engine; one that it refuses fails here and nowhere else."""
        try:
            self._sequence = self._engine.submit(
                self._prompt_ids,
                self._params,
                emit=self.put,
                priority=self._priority,
                constraint=self._constraint,
                group=self._group,
            )
        except Exception as exc:
            self.put(exc)
            return
        if self._cancel_requested:
            # It came before there was a sequence to cancel.
            self._engine.cancel(self._sequence)

    def put(self, delta: Delta | Exception) -> None:
        """Pass a delta or an error to whoever iterates or listens."""
        self._listener(delta)
        self.finished = isinstance(delta, Exception) or delta.finish_reason is not None


class EngineDriver:
    """Runs an engine's steps in a thread while there is work, and sleeps while there is none.

    Args:
        engine: used by this driver alone from now on, and not closed by it.
    """

    def __init__(self, engine: EngineCore) -> None:
        self._engine = engine
        self._queued: queue.SimpleQueue[RequestHandle | None] = queue.SimpleQueue()
        self._open: list[RequestHandle] = []
        self._closed = False
        # Held to queue something: nothing may be queued behind the None that ends the thread, where
        # nobody would find it.
        self._queueing = threading.Lock()
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._thread.start()

    def submit(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams | None = None,
        *,
        listener: Listener | None = None,
        priority: int = 0,
        constraint: TokenConstraint | None = None,
        group: object | None = None,
    ) -> RequestHandle:
        """Queue a request; one that the engine refuses raises when its handle is iterated.

        Args:
            prompt_ids, params, priority, constraint, group: as :meth:`EngineCore.submit`.
            listener: called in the engine's thread with each delta, or with the error that ends
                the request, instead of keeping them for who iterates: for callers that cannot
                wait in a thread, such as an event loop. It must not raise, and be quick.

        Raises:
            RunError: the driver is closed, its thread has failed, or this is a forked process,
                which has no such thread.
        """
        handle = RequestHandle(
            self._engine, prompt_ids, params, listener, priority, constraint, group
        )
        with self._queueing:
            if self._closed or not self._thread.is_alive():
                raise RunError("the engine's thread has ended")
            self._queued.put(handle)
        return handle

    @property
    def alive(self) -> bool:
        """Whether requests are taken: it was not closed, and no defect has ended its thread."""
        return not self._closed and self._thread.is_alive()

    def close(self) -> None:
        """Cancel what runs and what waits, and end the thread. Closing twice is harmless."""
        with self._queueing:
            if not self._closed:
                self._closed = True
                self._queued.put(None)
        self._thread.join()

    def __enter__(self) -> EngineDriver:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _loop(self) -> None:
        try:
            while self._take_queued() or self._engine.has_work:
                if self._engine.has_work:
                    self._engine.step()
        except Exception as exc:
            # A defect: whoever waits must hear of it instead of waiting for ever.
            if not self._fail_all(exc):
                raise

    def _take_queued(self) -> bool:
        """Start what was queued, waiting for it if there is nothing else to do.

        Returns:
            False once the driver is closed: no more will come.
        """
        while not (self._closed and self._queued.empty()):
            try:
                handle = self._queued.get(block=not self._engine.has_work)
            except queue.Empty:
                return True
            if handle is None:
                for open_handle in self._open:
                    open_handle.cancel()
                return False
            self._open = [h for h in self._open if not h.finished]
            self._open.append(handle)
            handle.start()
        return False

    def _fail_all(self, exc: Exception) -> bool:
        """End every request with an error; whether there was one to hear of it."""
        with self._queueing:
            self._closed = True
        handles = list(self._open)
        while not self._queued.empty():
            handle = self._queued.get()
            if handle is not None:
                handles.append(handle)
        waiting = [handle for handle in handles if not handle.finished]
        for handle in waiting:
            handle.put(exc)
        return bool(waiting)
