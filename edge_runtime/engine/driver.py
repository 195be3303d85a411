"""An engine in a thread of its own: submit from anywhere, read deltas, cancel at any time.

The thread that asks stays free to take Ctrl-C or to serve others. Knows queues; knows no array.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

from edge_runtime.engine.engine import Engine
from edge_runtime.engine.request import Delta
from edge_runtime.engine.sequence import Sequence as EngineSequence
from edge_runtime.errors import EdgeRuntimeError, RunError
from edge_runtime.generation.params import SamplingParams

# A wait without a limit cannot be interrupted by Ctrl-C on every system.
_POLL_S = 0.5


class RequestHandle:
    """One request: iterate it for its deltas; iterating raises the request's error if it fails."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._deltas: queue.SimpleQueue[Delta | Exception] = queue.SimpleQueue()
        self._sequence: EngineSequence | None = None
        self._cancel_requested = False
        self.finished = False
        """Whether the engine has passed the last delta, or an error."""

    def __iter__(self) -> Iterator[Delta]:
        while True:
            try:
                delta = self._deltas.get(timeout=_POLL_S)
            except queue.Empty:
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

    def start(self, prompt_ids: Sequence[int], params: SamplingParams | None) -> None:
        """Hand the request to the engine."""
        try:
            self._sequence = self._engine.submit(prompt_ids, params, emit=self.put)
        except EdgeRuntimeError as exc:
            self.put(exc)
            return
        if self._cancel_requested:
            # It came before there was a sequence to cancel.
            self._engine.cancel(self._sequence)

    def put(self, delta: Delta | Exception) -> None:
        """Pass a delta or an error to whoever iterates."""
        self.finished = isinstance(delta, Exception) or delta.finish_reason is not None
        self._deltas.put(delta)


class EngineDriver:
    """Runs an engine's steps in a thread while there is work, and sleeps while there is none.

    Args:
        engine: used by this driver alone from now on, and not closed by it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._open: list[RequestHandle] = []
        self._ended = False
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._thread.start()

    def submit(
        self, prompt_ids: Sequence[int], params: SamplingParams | None = None
    ) -> RequestHandle:
        """Queue a request; one that cannot be raises when its handle is iterated.

        Raises:
            RunError: the driver is closed.
        """
        if self._ended:
            raise RunError("the engine's thread has ended")
        handle = RequestHandle(self._engine)

        def start() -> None:
            self._open = [h for h in self._open if not h.finished]
            self._open.append(handle)
            handle.start(prompt_ids, params)

        self._jobs.put(start)
        return handle

    def close(self) -> None:
        """Cancel what runs, and end the thread when that is done."""
        self._jobs.put(self._end)
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

    def _end(self) -> None:
        self._ended = True
        for handle in self._open:
            handle.cancel()

    def _loop(self) -> None:
        try:
            while not self._ended or self._engine.has_work:
                self._take_jobs()
                if self._engine.has_work:
                    self._engine.step()
        except Exception as exc:
            # A defect: whoever waits must hear of it instead of waiting for ever.
            self._ended = True
            for handle in self._open:
                handle.put(exc)
            raise

    def _take_jobs(self) -> None:
        wait = not self._engine.has_work
        while True:
            try:
                job = self._jobs.get(block=wait)
            except queue.Empty:
                return
            job()
            wait = False
