"""How many threads a step should use here, and on which processors.

Follows the process's affinity, the cgroup's quota, cores that share hardware threads, and cores of
different speed. All cores of the machine is the wrong answer in a container and on big.LITTLE.
Reads /proc and /sys where they exist; knows no onnxruntime.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edge_runtime.errors import InvalidParameterError
from edge_runtime.providers.cgroup import folders_of, read_text

# A core counts as big from this share of the fastest one's capacity: a phone's middle cores take
# part, little ones do not, since a step waits for its slowest thread.
_BIG_CORE_SHARE = 0.7

# Idle threads of a session spin: hundreds on a few processors take minutes for one step.
_MOST_THREADS_ANYWHERE = 64


@dataclass(frozen=True)
class ThreadPlan:
    """Threads of a session.

    ``processors`` are the logical processors to stay on (0-based), one a thread, or empty where
    the operating system's own placement is right. ``reason`` is for people.
    """

    count: int
    processors: tuple[int, ...]
    reason: str


def plan_threads(requested: int | None = None, *, root: Path = Path("/")) -> ThreadPlan:
    """Choose the threads of a session.

    Args:
        requested: a number asked for by the user, taken as it is; None chooses.
        root: where /proc and /sys are, for tests.

    Raises:
        InvalidParameterError: a number below 1, or far more than there are processors.
    """
    if requested is not None:
        processors = max(_MOST_THREADS_ANYWHERE, os.cpu_count() or 1)
        if not 1 <= requested <= processors:
            raise InvalidParameterError(
                f"threads is {requested}; it must be 1 to {processors}", hint="or leave it out"
            )
        return ThreadPlan(requested, (), "asked for")
    allowed = _allowed_processors()
    cores = _one_processor_a_core(allowed, root)
    fast = _big_cores(cores, root)
    quota = _cgroup_quota(root)
    count = max(1, min(len(fast), math.ceil(quota) if quota else len(fast)))
    reason = f"{len(allowed)} processors allowed, {len(cores)} cores, {len(fast)} fast"
    if quota:
        reason += f", a quota of {quota:g}"
    placed = tuple(fast[:count]) if len(fast) < len(cores) else ()
    return ThreadPlan(count, placed, reason)


def _allowed_processors() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    if sys.platform == "darwin":
        # Performance cores alone: the efficiency cores would be waited for.
        with suppress(OSError, ValueError, subprocess.SubprocessError):
            command = ["sysctl", "-n", "hw.perflevel0.physicalcpu"]
            answer = subprocess.run(command, capture_output=True, timeout=2, check=True)
            return list(range(int(answer.stdout)))
    return list(range(os.cpu_count() or 1))


def _one_processor_a_core(allowed: Iterable[int], root: Path) -> list[int]:
    """One logical processor of each core: two threads on one core only share its units."""
    chosen: dict[str, int] = {}
    for processor in allowed:
        topology = root / f"sys/devices/system/cpu/cpu{processor}/topology"
        siblings = read_text(topology / "thread_siblings_list") or str(processor)
        chosen.setdefault(siblings, processor)
    return list(chosen.values())


def _big_cores(cores: list[int], root: Path) -> list[int]:
    capacity = {core: _capacity(core, root) for core in cores}
    known = [value for value in capacity.values() if value]
    if len(known) < len(cores):
        return cores
    return [core for core in cores if capacity[core] >= _BIG_CORE_SHARE * max(known)]


def _capacity(core: int, root: Path) -> int:
    folder = root / f"sys/devices/system/cpu/cpu{core}"
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        text = read_text(folder / name)
        if text.isdigit():
            return int(text)
    return 0


def _cgroup_quota(root: Path) -> float | None:
    """Processors' worth of time that the cgroup (v2 or v1) grants, the least over its parents."""
    quotas = [_quota_v2(folder) or _quota_v1(folder) for folder in folders_of("cpu", root=root)]
    return min((quota for quota in quotas if quota), default=None)


def _quota_v2(folder: Path) -> float | None:
    quota, _, period = read_text(folder / "cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _quota_v1(folder: Path) -> float | None:
    quota, period = read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None
