"""Shows on stderr how far a batch is: a bar on a terminal, now and then a line elsewhere.

rich is imported when a bar is drawn, and not before. Knows no request and no file.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

_LINE_INTERVAL_S = 5.0


class BatchProgress:
    """A context manager that shows progress while it is open.

    Args:
        total: requests in the batch.
        answered: those that an earlier run has answered.
    """

    def __init__(self, total: int, answered: int) -> None:
        terminal = sys.stderr is not None and sys.stderr.isatty()
        self._display: _Bar | _Lines = _Bar(total, answered) if terminal else _Lines(total)

    def update(self, answered: int, failed: int, tokens_per_s: float) -> None:
        """Show the state now: requests answered in all, errors among them, tokens generated."""
        self._display.update(answered, failed, tokens_per_s)

    def __enter__(self) -> BatchProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._display.end()


class _Bar:
    """A bar that goes away when the work ends."""

    def __init__(self, total: int, answered: int) -> None:
        self._bar, self._task = _rich_bar(total, answered)
        self._bar.start()

    def update(self, answered: int, failed: int, tokens_per_s: float) -> None:
        self._bar.update(
            self._task, completed=answered, speed=_speed(tokens_per_s), failed=_failed(failed)
        )

    def end(self) -> None:
        self._bar.stop()


class _Lines:
    """A line every few seconds, for logs."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._last_s = time.monotonic()

    def update(self, answered: int, failed: int, tokens_per_s: float) -> None:
        now_s = time.monotonic()
        if now_s - self._last_s < _LINE_INTERVAL_S or sys.stderr is None:
            return
        self._last_s = now_s
        state = f"{answered}/{self._total} requests{_failed(failed)}, {_speed(tokens_per_s)}"
        print(state, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Nothing is left open."""


def _speed(tokens_per_s: float) -> str:
    return f"{tokens_per_s:.1f} tokens/s"


def _failed(count: int) -> str:
    return f", {count} failed" if count else ""


def _rich_bar(total: int, answered: int) -> tuple[RichProgress, TaskID]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    bar = RichProgress(
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("requests{task.fields[failed]}, {task.fields[speed]}", markup=False),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task("batch", total=total, completed=answered, speed=_speed(0), failed="")
    return bar, task
