"""The memory that this process may take where nobody has set a cap: what machine and container leave.

The smaller of 90 % of what its control groups leave (of all limits from its own up to the root, that
which leaves least) and 80 % of what the machine has available; what this process holds already is
its own in both. Page cache counts as free: the kernel gives it up when it is asked. The rest is for
others, and for what the kernel keeps for each process.

A model that stays far below is loaded without a plan: measuring costs a chunk's time at every start.
Linux alone; elsewhere there is no limit. Knows no session.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from edge_runtime.bundle import Manifest
from edge_runtime.engine.memory import process_memory
from edge_runtime.engine.options import EngineOptions, MemoryLimit
from edge_runtime.providers.cgroup import folders_of, read_text

_GROUP_SHARE = 0.9
_MACHINE_SHARE = 0.8
# A v1 group without a limit shows the largest number of pages there is.
_NO_LIMIT_BYTES = 1 << 60
_COUNTERS = Path("/proc/self/clear_refs")

# A bound on what a model may come to take, before any of it is opened: interpreter and libraries;
# weights as mapped and as the operators rearrange them; rows of scores and of the feed-forward for
# each token of a chunk.
_BASELINE_BYTES = 200_000_000
_WEIGHTS_FACTOR = 2.2


def find_memory_limit(
    *, root: Path = Path("/"), own_bytes: int | None = None
) -> MemoryLimit | None:
    """The limit of this process as things stand; None where the system does not tell.

    Args:
        root: where /proc and /sys are, for tests.
        own_bytes: what this process has resident; None asks.
    """
    own = process_memory().resident_bytes if own_bytes is None else own_bytes
    if own is None:
        return None
    limits: list[MemoryLimit] = []
    available = _kilobytes(read_text(root / "proc/meminfo")).get("MemAvailable")
    if available is not None:
        free = available + own
        text = f"{_MACHINE_SHARE:.0%} of the {free / 1e6:.0f} MB that the machine has available"
        limits.append(MemoryLimit(int(free * _MACHINE_SHARE), text))
    for folder in folders_of("memory", root=root):
        left = _left_in(folder, own)
        if left is not None:
            text = f"{_GROUP_SHARE:.0%} of the {left / 1e6:.0f} MB that its control group leaves"
            limits.append(MemoryLimit(int(left * _GROUP_SHARE), text))
    return min(limits, key=lambda limit: limit.bytes, default=None)


def with_cap_if_near(options: EngineOptions, manifest: Manifest, context: int) -> EngineOptions:
    """The options with the machine's limit as their cap, if this model could come near it.

    Args:
        options: as asked for; a cap in them stays.
        manifest: of the model.
        context: tokens that a sequence may hold.
    """
    limit = options.memory_limit
    if limit is None or options.memory_cap_bytes is not None:
        return options
    if most_needed(manifest, options, context) <= limit.bytes or not os.access(_COUNTERS, os.W_OK):
        return options
    return replace(options, memory_cap_bytes=max(1, limit.bytes))


def most_needed(manifest: Manifest, options: EngineOptions, context: int) -> int:
    """A bound, in bytes, on what a model may take with these options; nothing is measured."""
    d = manifest.dimensions
    weights = max(
        sum(manifest.files[name].size_bytes for name in graph.weights) for graph in manifest.graphs
    )
    token = d.layers * 2 * d.kv_heads * d.head_size * 4
    cache = min(options.cache_tokens or options.slots * context, options.slots * context) * token
    # Scores of all heads over the context, twice, and some forty rows of the hidden size.
    chunk = options.chunk_size * 4 * (2 * d.heads * context + 40 * d.hidden_size)
    logits = 4 * d.vocabulary_size * (options.slots + 16)
    return int(_BASELINE_BYTES + _WEIGHTS_FACTOR * weights) + cache + chunk + logits


def _left_in(folder: Path, own: int) -> int | None:
    """What a group leaves to this process, what it holds included; None without a limit."""
    v2 = read_text(folder / "memory.max")
    limit = v2 or read_text(folder / "memory.limit_in_bytes")
    if not limit.isdigit() or int(limit) >= _NO_LIMIT_BYTES:
        return None
    used = read_text(folder / ("memory.current" if v2 else "memory.usage_in_bytes"))
    statistics = _numbers(read_text(folder / "memory.stat"))
    names = ("inactive_file", "active_file") if v2 else ("total_inactive_file", "total_active_file")
    page_cache = sum(statistics.get(name, 0) for name in names)
    others = max(0, (int(used) if used.isdigit() else 0) - page_cache - own)
    return max(0, int(limit) - others)


def _kilobytes(text: str) -> Mapping[str, int]:
    """``Name:  123 kB`` lines, in bytes."""
    pairs = (line.split() for line in text.splitlines())
    return {p[0].rstrip(":"): int(p[1]) * 1024 for p in pairs if len(p) > 1 and p[1].isdigit()}


def _numbers(text: str) -> Mapping[str, int]:
    """``name 123`` lines."""
    pairs = (line.split() for line in text.splitlines())
    return {p[0]: int(p[1]) for p in pairs if len(p) == 2 and p[1].isdigit()}
