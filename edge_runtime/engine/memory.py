"""What this process holds in memory, as the operating system counts it.

Knows no model. Source on Linux: /proc/self/status (proc(5)).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessMemory:
    """Resident bytes, and the anonymous part of them that the system cannot drop and read again.

    None where the operating system has no such figure.
    """

    resident_bytes: int | None
    anonymous_bytes: int | None


@dataclass(frozen=True)
class MemoryReport:
    """Bytes of this process, and of its cache; None where the system does not tell."""

    resident_bytes: int | None
    anonymous_bytes: int | None
    cache_bytes: int
    cache_tokens: int


def process_memory() -> ProcessMemory:
    """The memory of this process now."""
    fields: dict[str, int] = {}
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(":")
            if name in ("VmRSS", "RssAnon"):
                fields[name] = int(value.split()[0]) * 1024
    return ProcessMemory(fields.get("VmRSS"), fields.get("RssAnon"))
