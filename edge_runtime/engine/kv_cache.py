"""The KV cache: reserved at full capacity, committed by the operating system as it is touched.

A slot costs what it holds, to the page, and gives it back when released. Knows geometry and
addresses; knows no tokens and no session.
"""

from __future__ import annotations

import mmap
import platform
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_runtime.bundle import CacheType, ModelDimensions
from edge_runtime.errors import RunError


@dataclass(frozen=True)
class CacheGeometry:
    """Sizes of the cache: (layers, key and value, slots, kv_heads, capacity, head_size).

    In int8 each number stands for itself times its channel's scale, which the graph knows.
    """

    layers: int
    slots: int
    kv_heads: int
    capacity: int
    head_size: int
    cache_type: CacheType = "float32"

    @classmethod
    def of(
        cls,
        model: ModelDimensions,
        *,
        slots: int,
        capacity: int,
        cache_type: CacheType = "float32",
    ) -> CacheGeometry:
        """The geometry of a model's cache for so many slots of ``capacity`` tokens."""
        return cls(model.layers, slots, model.kv_heads, capacity, model.head_size, cache_type)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the arrays' items."""
        return np.dtype(self.cache_type)

    @property
    def token_bytes(self) -> int:
        """Bytes that one token takes over all layers."""
        return self.layers * 2 * self.kv_heads * self.head_size * self.dtype.itemsize


class KVCache:
    """Arrays (slots, kv_heads, capacity, head_size), a key and a value a layer.

    Args:
        geometry: its sizes.
    """

    def __init__(self, geometry: CacheGeometry) -> None:
        self.geometry = geometry
        g = geometry
        self._token_bytes = g.head_size * g.dtype.itemsize  # of one head
        self._row_bytes = g.capacity * self._token_bytes  # one head of one slot
        self._slot_bytes = g.kv_heads * self._row_bytes
        self._array_bytes = _to_pages(g.slots * self._slot_bytes)
        self._memory = _reserve(g.layers * 2 * self._array_bytes)
        self._base: NDArray[np.uint8] | None = np.frombuffer(self._memory, np.uint8)

    def address(self, layer: int, part: int, first_slot: int) -> int:
        """Where an array's rows from ``first_slot`` on begin; ``part`` 0 is key, 1 value."""
        assert self._base is not None, "the cache is closed"
        offset = self._offset(layer, part) + first_slot * self._slot_bytes
        return int(self._base.ctypes.data) + offset

    def array(self, layer: int, part: int) -> NDArray[Any]:
        """One layer's keys or values, (slots, kv_heads, capacity, head_size), a view.

        Items are float32 or int8, as the geometry says.
        """
        g = self.geometry
        assert self._base is not None, "the cache is closed"
        start = self._offset(layer, part)
        flat = self._base[start : start + g.slots * self._slot_bytes].view(g.dtype)
        return flat.reshape(g.slots, g.kv_heads, g.capacity, g.head_size)

    def copy(self, source: int, target: int, *, tokens: int, first: int = 0) -> None:
        """Make the tokens ``first`` to before ``tokens`` of slot ``target`` those of ``source``."""
        for layer in range(self.geometry.layers):
            for part in (0, 1):
                array = self.array(layer, part)
                array[target, :, first:tokens] = array[source, :, first:tokens]

    def rows(self, slot: int, *, tokens: int) -> list[NDArray[Any]]:
        """The first tokens of a slot: of each layer the keys, then the values, as views.

        Each is (kv_heads, tokens, head_size), each head contiguous.
        """
        arrays = (
            self.array(layer, part) for layer in range(self.geometry.layers) for part in (0, 1)
        )
        return [array[slot, :, :tokens] for array in arrays]

    def release(self, slot: int, *, keep_tokens: int = 0) -> None:
        """Give back the pages of a slot that lie wholly past its first ``keep_tokens`` tokens."""
        if not hasattr(mmap, "MADV_DONTNEED"):
            return  # the system keeps the pages; they are used again by the slot's next sequence
        g = self.geometry
        keep = keep_tokens * self._token_bytes
        for layer in range(g.layers):
            for part in (0, 1):
                for head in range(g.kv_heads):
                    row = self._offset(layer, part) + slot * self._slot_bytes
                    row += head * self._row_bytes
                    start = _to_pages(row + keep)
                    length = (row + self._row_bytes - start) // mmap.PAGESIZE * mmap.PAGESIZE
                    if length > 0:
                        self._memory.madvise(mmap.MADV_DONTNEED, start, length)

    def close(self) -> None:
        """Give all memory back; no address may be in use. Closing twice is harmless.

        Memory that a view of :meth:`array` still shows goes with the last such view.
        """
        self._base = None
        with suppress(BufferError):
            self._memory.close()

    def _offset(self, layer: int, part: int) -> int:
        return (2 * layer + part) * self._array_bytes


def _reserve(size: int) -> mmap.mmap:
    try:
        if not hasattr(mmap, "MAP_PRIVATE"):  # Windows
            return mmap.mmap(-1, size)
        # Shared anonymous memory (the default) would keep its pages when advised away.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _no_reserve()
        memory = mmap.mmap(-1, size, flags=flags)
    except (OSError, OverflowError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "more than there are addresses"
        raise RunError(
            f"the system refuses to reserve {size // 1_000_000} MB for the cache: {reason}",
            hint="ask for a shorter context with --context",
        ) from exc
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        # A huge page would commit 2 MiB for the first token of every head. A kernel without huge
        # pages refuses the advice, and needs none.
        with suppress(OSError):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memory


def _no_reserve() -> int:
    """MAP_NORESERVE: pages count when they are touched, not when they are reserved.

    Without it Linux refuses a reservation larger than its memory. Older Pythons have no name for
    it; the number is that of asm-generic/mman.h, which these processors use.
    """
    if hasattr(mmap, "MAP_NORESERVE"):
        return int(mmap.MAP_NORESERVE)
    generic = ("x86_64", "aarch64", "armv7l", "riscv64")
    return 0x4000 if sys.platform.startswith("linux") and platform.machine() in generic else 0


def _to_pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
