"""Watches the process's memory against the cap, and gives things up in a fixed order.

A plan keeps the engine under its cap; this is for what no plan foresees: a host program that grows,
fragmented heaps, a cache filled by hand. One thing is given up at a time, and the next only if that
was not enough: warm prefixes, what onnxruntime's allocator holds unused, further requests, the
youngest request's slot. Knows no text and
no array.
"""

from __future__ import annotations

from collections.abc import Callable

from edge_runtime.engine.executor import Executor
from edge_runtime.engine.metrics import EngineMetrics, PressureAction
from edge_runtime.engine.scheduler import Scheduler
from edge_runtime.engine.sequence import Sequence

# Reading the counter takes some 50 microseconds; a step takes milliseconds.
_CHECK_EVERY_STEPS = 16
# A plan leaves 5 % of the cap free. Where half of that is used up, something unplanned has grown;
# where a little more is free than that, it is over.
_HIGH_SHARE, _LOW_SHARE = 0.975, 0.96


class PressureMonitor:
    """Keeps a process under its cap.

    Args:
        cap_bytes: most that it may have resident.
        resident_bytes: what it has now; None where the system does not tell.
        scheduler: starts requests, and knows what is warm.
        executor: holds the memory.
        metrics: where each action is counted.
    """

    def __init__(
        self,
        cap_bytes: int,
        *,
        resident_bytes: Callable[[], int | None],
        scheduler: Scheduler,
        executor: Executor,
        metrics: EngineMetrics,
    ) -> None:
        self._high = int(cap_bytes * _HIGH_SHARE)
        self._low = int(cap_bytes * _LOW_SHARE)
        self._resident_bytes = resident_bytes
        self._scheduler = scheduler
        self._executor = executor
        self._metrics = metrics
        self._steps = 0
        self._shrunk = False

    def check(self) -> Sequence | None:
        """Look now and then, at every step while there is pressure, and act.

        Returns:
            The sequence that was preempted.
        """
        self._steps += 1
        if not (self._shrunk or self._steps % _CHECK_EVERY_STEPS == 0):
            return None
        resident = self._resident_bytes()
        if resident is None:
            return None
        if resident > self._high:
            return self._act()
        # Between the two, what finished requests leave goes first, and when only one runs nothing
        # more can come free by waiting.
        if self._shrunk and (resident <= self._low or self._has_given_all()):
            self._shrunk = False
            self._scheduler.admitting = True
        return None

    def _has_given_all(self) -> bool:
        return not self._drop_prefixes() and len(self._scheduler.running) <= 1

    def _act(self) -> Sequence | None:
        if self._drop_prefixes():
            self._metrics.count_pressure(PressureAction.DROP_PREFIXES)
        elif not self._shrunk:
            self._shrunk = True
            self._executor.shrink()
            self._metrics.count_pressure(PressureAction.SHRINK_ARENA)
        elif self._scheduler.admitting:
            self._scheduler.admitting = False
            self._metrics.count_pressure(PressureAction.STOP_ADMITTING)
        elif (preempted := self._scheduler.preempt_youngest()) is not None:
            self._drop_prefixes()  # what it held, too
            self._metrics.count_pressure(PressureAction.PREEMPT)
            return preempted[0]
        return None

    def _drop_prefixes(self) -> bool:
        """Give back the pages of warm prefixes; whether there were any."""
        held = self._scheduler.warm_tokens > 0
        self._executor.release(self._scheduler.forget_warm_tokens())
        return held
