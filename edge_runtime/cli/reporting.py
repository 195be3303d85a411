"""Draws notices and progress on stderr: a bar on a terminal, now and then a line elsewhere.

rich is imported when the first bar is drawn, and not before. Knows nothing of the work.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from edge_runtime.store.progress import Event, Notice, Progress, format_bytes

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

_LINE_INTERVAL_S = 5.0


class Reporter:
    """A `edge_runtime.store.progress.Report` for people; a context manager that ends its bar."""

    def __init__(self) -> None:
        terminal = sys.stderr is not None and sys.stderr.isatty()
        self._progress: _Bars | _Lines = _Bars() if terminal else _Lines()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        if isinstance(event, Notice):
            self._progress.end()
            print(event.text, file=sys.stderr, flush=True)
        else:
            self._progress.update(event)

    def __enter__(self) -> Reporter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.end()


class _Bars:
    """One bar a stage, for a terminal; it goes away when the work ends."""

    def __init__(self) -> None:
        self._bars: RichProgress | None = None
        self._stage = ""
        self._task: TaskID | None = None

    def update(self, progress: Progress) -> None:
        """Draw a stage's state, in the place of the stage before."""
        if self._bars is None:
            self._bars = _rich_progress()
            self._bars.start()
        # A stage that counts nothing says 1 of 1: its bar only moves.
        total = progress.total_bytes if progress.total_bytes > 1 else None
        amount = _amount(progress) if progress.done_bytes > 1 else ""
        if self._task is None or progress.stage != self._stage:
            if self._task is not None:
                self._bars.remove_task(self._task)
            self._stage = progress.stage
            self._task = self._bars.add_task(progress.stage, total=total, amount=amount)
        done = progress.done_bytes
        self._bars.update(self._task, completed=done, total=total, amount=amount)

    def end(self) -> None:
        """Take the bar away."""
        if self._bars is not None:
            self._bars.stop()
        self._bars, self._task = None, None


class _Lines:
    """A line every few seconds, for logs; nothing at all for work that is quicker."""

    def __init__(self) -> None:
        self._last_s = time.monotonic()

    def update(self, progress: Progress) -> None:
        """Write a line if the last one is long enough ago."""
        now_s = time.monotonic()
        if now_s - self._last_s < _LINE_INTERVAL_S:
            return
        self._last_s = now_s
        print(f"{progress.stage}: {_amount(progress)}", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Nothing is left open."""


def _amount(progress: Progress) -> str:
    """How much is done, in percent where there is a total."""
    done = format_bytes(progress.done_bytes)
    if not progress.total_bytes:
        return done
    share = 100 * progress.done_bytes // progress.total_bytes
    return f"{share}% ({done} of {format_bytes(progress.total_bytes)})"


def _rich_progress() -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    return RichProgress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[amount]}", markup=False),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
