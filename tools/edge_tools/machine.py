"""What machine a figure was measured on, in a few facts. Knows nothing of what is measured."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

# The distributions that provide the one onnxruntime module.
_DISTRIBUTIONS = (
    "onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-qnn",
    "onnxruntime-directml",
)  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """The processor, how many of its threads this process may use, and the software's versions."""

    cpu: str
    usable_cpus: int
    system: str
    python: str
    onnxruntime: str


def this_machine() -> Machine:
    """Facts about the machine and this interpreter."""
    return Machine(
        cpu=_cpu_name(),
        usable_cpus=_usable_cpus(),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        onnxruntime=_onnxruntime_version(),
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in {"model name", "Model", "Hardware"}:
            return value.strip()
    return platform.processor() or platform.machine()


def _usable_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _onnxruntime_version() -> str:
    for name in _DISTRIBUTIONS:
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    return "none"
