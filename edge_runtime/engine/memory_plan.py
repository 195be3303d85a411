"""How a memory cap is split, and what gives way when it is too small.

From measured costs and what was asked for, a plan that fits the cap: first as asked, then down a
ladder, one rung at a time, until it fits: a smaller chunk, fewer slots, a cache in 8 bits, a shorter
context. Below the last rung the plan is refused, with the smallest cap that would do. Knows sizes alone; who
measures them and who keeps to the plan live elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from edge_runtime.bundle import CacheType
from edge_runtime.errors import InvalidParameterError, MemoryCapError

SMALLEST_CHUNK = 16
SMALLEST_CONTEXT = 256
# Part of the cap that no line of the plan uses: the interpreter's own ups and downs, a request's
# text, and what the kernel counts for pages that are only partly used.
_HEADROOM_SHARE = 0.05
_SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


@dataclass(frozen=True)
class MemoryCosts:
    """What a loaded model takes with one type of cache, in bytes.

    Args:
        baseline: resident before the model was opened: interpreter, libraries.
        weights_anonymous: what opening it added that the kernel cannot drop.
        weights_mapped: what it keeps mapped from its files.
        activations: of one chunk of ``measured_chunk`` tokens at the end of a full context.
        measured_chunk: tokens of that chunk; other chunks are taken in proportion.
        cache_token: one token of the cache over all layers.
        activations_token: what a chunk takes further for each token of the context, whatever its
            own size: an int8 cache's keys and values of one layer are turned to float32.
    """

    baseline: int
    weights_anonymous: int
    weights_mapped: int
    activations: int
    measured_chunk: int
    cache_token: int
    activations_token: int = 0


@dataclass(frozen=True)
class MemoryAsk:
    """What is wanted: tokens of context, sequences at a time, tokens of a chunk, type of cache."""

    context_length: int
    slots: int
    chunk_size: int
    cache_type: CacheType = "float32"


@dataclass(frozen=True)
class MemoryPlan:
    """A split of the cap that fits, in bytes, and how it differs from what was asked for.

    ``cache`` holds ``slots`` times ``context_length`` tokens. ``steps`` says each rung taken, in
    words. ``cap_source`` says where the cap comes from.
    """

    cap: int
    granted: MemoryAsk
    baseline: int
    weights_anonymous: int
    weights_mapped: int
    activations: int
    cache: int
    headroom: int
    steps: tuple[str, ...]
    cap_source: str = "asked for"

    @property
    def total(self) -> int:
        """Bytes of all lines; at most the cap."""
        return (
            self.baseline
            + self.weights_anonymous
            + self.weights_mapped
            + self.activations
            + self.cache
            + self.headroom
        )


def plan_memory(
    cap: int,
    costs: MemoryCosts,
    ask: MemoryAsk,
    *,
    int8_costs: Callable[[], MemoryCosts] | None = None,
) -> MemoryPlan:
    """Fit what is asked for into the cap.

    Args:
        cap: bytes that the process may have resident.
        costs: measured with the type of cache that is asked for.
        ask: what is wanted; a chunk or context below the ladder's smallest stays as it is.
        int8_costs: measures the model over an int8 cache; called when the ladder comes to that
            rung. None where there is no such cache.

    Raises:
        MemoryCapError: even the smallest form does not fit.
    """
    granted = ask
    while (plan := _split(cap, costs, granted)).total > cap:
        if _is_at_last_slot(granted) and granted.cache_type == "float32" and int8_costs is not None:
            granted = replace(granted, cache_type="int8")
            costs = int8_costs()
            continue
        lower = _step_down(granted, cap - plan.total + _context_bytes(costs, granted), costs)
        if lower is None:
            raise MemoryCapError(cap, smallest_cap=_smallest_cap(costs, granted))
        granted = lower
    # Where a later rung made the room, a smaller chunk would be slower for nothing.
    for chunk in _chunks(ask.chunk_size, down_to=granted.chunk_size):
        larger = replace(granted, chunk_size=chunk)
        if (split := _split(cap, costs, larger)).total <= cap:
            plan, granted = split, larger
            break
    return replace(plan, steps=_rungs_taken(ask, granted))


def _chunks(chunk: int, *, down_to: int) -> Iterator[int]:
    """The ladder's chunk sizes, the largest first."""
    while chunk > down_to:
        yield chunk
        chunk = max(down_to, chunk // 2)


def parse_bytes(text: str) -> int:
    """``"600M"``, ``"1.5GiB"``, ``"800000000"`` -> bytes; M is a million, Mi is 2^20.

    Raises:
        InvalidParameterError: not a size.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?|)b?\s*", text.lower())
    size = int(float(found[1]) * _SUFFIXES[found[2]]) if found else 0
    if size <= 0:
        raise InvalidParameterError(f"{text!r} is not a size", hint="write it as 600M or 1.5G")
    return size


def _rungs_taken(ask: MemoryAsk, granted: MemoryAsk) -> tuple[str, ...]:
    ladder: tuple[tuple[str, object, object], ...] = (
        ("chunk", ask.chunk_size, granted.chunk_size),
        ("slots", ask.slots, granted.slots),
        ("cache", ask.cache_type, granted.cache_type),
        ("context", ask.context_length, granted.context_length),
    )
    return tuple(f"{name} {now} (asked for {then})" for name, then, now in ladder if now != then)


def _split(cap: int, costs: MemoryCosts, ask: MemoryAsk) -> MemoryPlan:
    return MemoryPlan(
        cap=cap,
        granted=ask,
        baseline=costs.baseline,
        weights_anonymous=costs.weights_anonymous,
        weights_mapped=costs.weights_mapped,
        activations=_activations(costs, ask),
        cache=ask.slots * ask.context_length * costs.cache_token,
        headroom=int(cap * _HEADROOM_SHARE),
        steps=(),
    )


def _activations(costs: MemoryCosts, ask: MemoryAsk) -> int:
    of_chunk = -(-costs.activations * ask.chunk_size // costs.measured_chunk)
    return of_chunk + costs.activations_token * ask.context_length


def _context_bytes(costs: MemoryCosts, ask: MemoryAsk) -> int:
    """What grows with the context: the cache, and a part of the activations."""
    return ask.context_length * (ask.slots * costs.cache_token + costs.activations_token)


def _is_at_last_slot(ask: MemoryAsk) -> bool:
    return ask.chunk_size <= SMALLEST_CHUNK and ask.slots == 1


def _step_down(ask: MemoryAsk, left_for_context: int, costs: MemoryCosts) -> MemoryAsk | None:
    """The next rung: half the chunk, one slot fewer, then the longest context that fits."""
    if ask.chunk_size > SMALLEST_CHUNK:
        return replace(ask, chunk_size=max(SMALLEST_CHUNK, ask.chunk_size // 2))
    if ask.slots > 1:
        return replace(ask, slots=ask.slots - 1)
    context_token = costs.cache_token + costs.activations_token
    context = min(left_for_context // context_token, ask.context_length - 1)
    if context >= SMALLEST_CONTEXT:
        return replace(ask, context_length=context)
    return None


def _smallest_cap(costs: MemoryCosts, ask: MemoryAsk) -> int:
    smallest = replace(ask, slots=1, context_length=min(ask.context_length, SMALLEST_CONTEXT))
    used = _split(0, costs, smallest).total
    return int(used / (1 - _HEADROOM_SHARE)) + 1
