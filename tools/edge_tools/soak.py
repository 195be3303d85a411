"""Many requests under a memory cap: is it kept, is memory flat, does every request come to its end.

The engine runs in a process of its own and is watched from here, by the system's counters. Requests
join and leave at random moments, are cancelled, share prefixes, wait, and some are longer than the
context. Exit code 1 where anything was not as it must be.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from edge_runtime.engine.memory_plan import parse_bytes
from edge_runtime.engine.options import AdmissionMode
from edge_runtime.errors import EdgeRuntimeError, UsageError
from edge_tools.command import bundle_of, parser, run, say
from edge_tools.process import status_kb
from edge_tools.soak_worker import SoakOrder

_SAMPLE_EVERY_S = 0.01
# Memory is settled once every slot, chunk and prefix has been in use: a tenth of the requests, and
# 200 where there are as many. From there on it may not rise by more than this.
_SETTLED_AFTER = 200
_FLAT_SHARE = 0.03


class SoakError(EdgeRuntimeError):
    """The watched process died."""


@dataclass(frozen=True)
class Sample:
    """Resident bytes when so many requests had ended."""

    ended: int
    resident_bytes: int


@dataclass(frozen=True)
class SoakReport:
    """What a soak found.

    ``settled_bytes`` and ``last_bytes`` are medians of resident memory after the first tenth (or
    200) of the requests and over the last tenth.
    """

    memory_cap_bytes: int
    highest_bytes: int
    settled_bytes: int
    last_bytes: int
    samples: int
    seconds: float
    worker: dict[str, Any]

    @property
    def failures(self) -> list[str]:
        """What is not as it must be, in words."""
        found = list(self.worker["problems"])
        if self.highest_bytes > self.memory_cap_bytes:
            found.append(f"{_mb(self.highest_bytes)} resident, over {_mb(self.memory_cap_bytes)}")
        if self.last_bytes > self.settled_bytes * (1 + _FLAT_SHARE):
            found.append(f"grew from {_mb(self.settled_bytes)} to {_mb(self.last_bytes)}")
        ended = sum(self.worker["ends"].values())
        if ended != self.worker["requests"]:
            found.append(f"{ended} of {self.worker['requests']} requests ended")
        return found


def soak(order: SoakOrder) -> SoakReport:
    """Run a worker and watch it.

    Raises:
        SoakError: it died.
        UsageError: this system does not tell what a process holds.
    """
    started = time.perf_counter()
    command = [sys.executable, "-m", "edge_tools.soak_worker"]
    lines: list[dict[str, Any]] = []
    samples: list[Sample] = []
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        json.dump(dataclasses.asdict(order), child.stdin)
        child.stdin.close()
        out = child.stdout
        reader = threading.Thread(target=lambda: lines.extend(map(json.loads, out)))
        reader.start()
        ended = 0
        while child.poll() is None:
            kb = status_kb(child.pid, "VmRSS")
            now = lines[-1].get("ended", ended) if lines else 0
            if now // 200 > ended // 200:
                say(f"{now} of {order.requests} requests, {kb or 0} kB resident")
            ended = now
            if kb is not None:
                samples.append(Sample(ended, kb * 1024))
            time.sleep(_SAMPLE_EVERY_S)
        reader.join()
        if child.returncode != 0 or not lines or "ends" not in lines[-1]:
            raise SoakError(f"the soaked process ended with exit code {child.returncode}")
    if not samples:
        raise UsageError("this system does not tell what a process holds", hint="soak on Linux")
    return report(order, samples, lines[-1], time.perf_counter() - started)


def report(
    order: SoakOrder, samples: Sequence[Sample], worker: dict[str, Any], seconds: float
) -> SoakReport:
    """Sum the samples up."""
    settled_at = min(_SETTLED_AFTER, order.requests // 10)
    tenth = max(1, order.requests // 10)

    def median_between(first: int, end: int) -> int:
        chosen = [s.resident_bytes for s in samples if first <= s.ended < end]
        return int(median(chosen or [s.resident_bytes for s in samples]))

    return SoakReport(
        memory_cap_bytes=order.memory_cap_bytes,
        highest_bytes=max(s.resident_bytes for s in samples),
        settled_bytes=median_between(settled_at, settled_at + tenth),
        last_bytes=median_between(order.requests - tenth, order.requests + 1),
        samples=len(samples),
        seconds=seconds,
        worker=worker,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of ``python -m edge_tools.soak``."""
    made = parser("soak", __doc__)
    made.add_argument("--memory-cap", required=True, metavar="SIZE", help="such as 300M")
    made.add_argument("--requests", type=int, default=2000, metavar="N")
    made.add_argument("--seed", type=int, default=1, metavar="N")
    made.add_argument("--slots", type=int, default=4, metavar="N")
    made.add_argument("--context", type=int, default=512, metavar="N")
    made.add_argument("--cache-tokens", type=int, metavar="N", help="the budget of cache tokens")
    made.add_argument(
        "--admission",
        choices=[mode.value for mode in AdmissionMode],
        default=AdmissionMode.RESERVE.value,
    )
    made.add_argument(
        "--data-limit",
        action="store_true",
        help="have the system itself refuse private memory past what the loaded engine has reserved "
        "and 5 %% of the cap (RLIMIT_DATA); for a limit on resident memory start this in a container "
        "or with systemd-run -p MemoryMax",
    )
    given = made.parse_args(arguments)
    order = SoakOrder(
        bundle=str(bundle_of(given)),
        memory_cap_bytes=parse_bytes(given.memory_cap),
        requests=given.requests,
        seed=given.seed,
        slots=given.slots,
        context_length=given.context,
        threads=given.threads,
        admission=given.admission,
        cache_tokens=given.cache_tokens,
        data_limit=given.data_limit,
    )
    found = soak(order)
    if given.json:
        print(json.dumps(dataclasses.asdict(found) | {"failures": found.failures}))
    else:
        _print(found)
    if found.failures:
        sys.exit(1)


def _print(found: SoakReport) -> None:
    worker = found.worker
    ends = ", ".join(f"{count} {how}" for how, count in sorted(worker["ends"].items()))
    print(f"requests   {worker['requests']}: {ends}, in {found.seconds:.0f} s")
    print(f"highest    {_mb(found.highest_bytes)} of {_mb(found.memory_cap_bytes)} resident")
    print(f"flat       {_mb(found.settled_bytes)} once settled, {_mb(found.last_bytes)} at the end")
    counts = worker["counts"]
    print(
        f"steps      occupancy {worker['batch_occupancy']:.2f}, padding {worker['padding_waste']:.3f}, "
        f"{counts['preemptions']} preemptions, {counts['cached_tokens']} of "
        f"{counts['prompt_tokens']} prompt tokens cached"
    )
    for failure in found.failures[:20]:
        print(f"FAILED     {failure}")


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


if __name__ == "__main__":
    run(main)
