"""What a whole process costs: time to its first byte, and the memory it peaks at.

The command runs as a child and is watched from here, so that the watching costs it nothing. Memory
is read where the system shows a process's own in /proc (Linux); elsewhere it is None.
"""

from __future__ import annotations

import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from edge_runtime.errors import EdgeRuntimeError

_SAMPLE_EVERY_S = 0.002


class CommandError(EdgeRuntimeError):
    """A measured command failed."""


@dataclass(frozen=True)
class PeakMemory:
    """Peaks in MiB: all resident pages, and those of them that no file backs."""

    rss_mb: float | None
    anonymous_mb: float | None


def first_byte_s(command: Sequence[str]) -> float:
    """Seconds from starting a command to the first byte on its standard output.

    Raises:
        CommandError: it wrote nothing, or failed.
    """
    started = time.perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    ) as child:
        assert child.stdout is not None and child.stderr is not None
        first = child.stdout.read(1)
        arrived = time.perf_counter()
        child.stdout.read()
        _check(command, child.stderr.read(), child.wait())
    if not first:
        raise CommandError(f"{' '.join(command)}: wrote nothing")
    return arrived - started


def peak_memory(command: Sequence[str], stdin_text: str) -> tuple[PeakMemory, str]:
    """Run a command to its end, watching its memory.

    Args:
        command: program and arguments.
        stdin_text: what it reads.

    Returns:
        The peaks, and what it wrote on standard output.

    Raises:
        CommandError: it failed.
    """
    rss_kb: int | None = None
    anonymous_kb: int | None = None
    # Files rather than pipes, so that nobody has to read while the child runs.
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out:
        given.write(stdin_text.encode())
        given.seek(0)
        with (
            tempfile.TemporaryFile() as err,
            subprocess.Popen(command, stdin=given, stdout=out, stderr=err) as child,
        ):
            while child.poll() is None:
                rss_kb = _larger(rss_kb, status_kb(child.pid, "VmHWM"))
                anonymous_kb = _larger(anonymous_kb, status_kb(child.pid, "RssAnon"))
                time.sleep(_SAMPLE_EVERY_S)
            err.seek(0)
            _check(command, err.read(), child.returncode)
        out.seek(0)
        return PeakMemory(_mb(rss_kb), _mb(anonymous_kb)), out.read().decode()


@contextmanager
def peak_of(pid: int) -> Iterator[Callable[[], PeakMemory]]:
    """Watch a process while the block runs; what it gives tells the peaks so far."""
    rss_kb: int | None = None
    anonymous_kb: int | None = None
    done = threading.Event()

    def watch() -> None:
        nonlocal rss_kb, anonymous_kb
        while True:
            rss_kb = _larger(rss_kb, status_kb(pid, "VmHWM"))
            anonymous_kb = _larger(anonymous_kb, status_kb(pid, "RssAnon"))
            if done.wait(_SAMPLE_EVERY_S):
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield lambda: PeakMemory(_mb(rss_kb), _mb(anonymous_kb))
    finally:
        done.set()
        watcher.join()


def _check(command: Sequence[str], err: bytes, status: int) -> None:
    if status != 0:
        last = err.decode(errors="replace").strip().splitlines()[-1:] or ["(no message)"]
        raise CommandError(f"{' '.join(command)}: exit code {status}: {last[0]}")


def status_kb(pid: int, key: str) -> int | None:
    """A figure of /proc/PID/status in kB, such as VmRSS; None where there is none (any more)."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    for line in lines.splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1])
    return None  # a process that has ended but was not waited for shows no memory


def _larger(a: int | None, b: int | None) -> int | None:
    known = [value for value in (a, b) if value is not None]
    return max(known, default=None)


def _mb(kb: int | None) -> float | None:
    return None if kb is None else kb / 1024
