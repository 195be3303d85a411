from __future__ import annotations

import dataclasses
import mmap
import os
import sys

import numpy as np
import pytest

from edge_runtime.engine.kv_cache import CacheGeometry, KVCache
from edge_runtime.engine.memory import process_memory
from edge_runtime.errors import RunError

GEOMETRY = CacheGeometry(layers=2, slots=3, kv_heads=2, capacity=4096, head_size=64)


def test_arrays_do_not_overlap_and_addresses_point_into_them() -> None:
    cache = KVCache(GEOMETRY)
    for layer in range(2):
        for part in range(2):
            cache.array(layer, part)[:, :, 0] = 10 * layer + part
    for layer in range(2):
        for part in range(2):
            array = cache.array(layer, part)
            assert (array[:, :, 0] == 10 * layer + part).all()
            assert (array[:, :, 1] == 0).all()
            assert cache.address(layer, part, 2) == array[2].ctypes.data
    del array
    cache.close()


def test_bytes_of_a_token() -> None:
    assert GEOMETRY.token_bytes == 2 * 2 * 2 * 64 * 4
    assert dataclasses.replace(GEOMETRY, cache_type="int8").token_bytes == 2 * 2 * 2 * 64


def test_a_cache_of_bytes_is_copied_and_given_back_as_one_of_floats() -> None:
    cache = KVCache(dataclasses.replace(GEOMETRY, cache_type="int8"))
    array = cache.array(1, 1)
    assert array.dtype == np.int8
    assert array.shape == (3, 2, 4096, 64)
    array[...] = np.arange(3)[:, None, None, None] + 1
    cache.copy(2, 0, tokens=100)
    assert (array[0, :, :100] == 3).all()
    assert (array[0, :, 100:] == 1).all()
    cache.release(1, keep_tokens=100)
    assert (array[1, :, :100] == 2).all()
    assert cache.address(1, 1, 2) == array[2].ctypes.data
    if hasattr(mmap, "MADV_DONTNEED"):
        assert not array[1, :, 100 + mmap.PAGESIZE // 64 :].any()
    assert (array[[0, 2], :, -1] == [[[1]], [[3]]]).all()
    del array
    cache.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_is_committed_as_it_is_touched_and_given_back() -> None:
    geometry = CacheGeometry(layers=1, slots=2, kv_heads=1, capacity=1 << 18, head_size=64)

    def anonymous() -> int:
        held = process_memory().anonymous_bytes
        assert held is not None
        return held

    before = anonymous()
    cache = KVCache(geometry)  # 256 MiB reserved
    assert anonymous() - before < 8 << 20
    cache.array(0, 0)[1, 0, : 1 << 17] = 1.0  # 32 MiB
    assert anonymous() - before > 24 << 20
    cache.release(1, keep_tokens=100)
    assert anonymous() - before < 8 << 20
    kept = cache.array(0, 0)[1, 0, :200]
    assert (kept[:100] == 1).all()
    assert not kept[112:].any()
    del kept
    cache.close()


def test_a_copied_prefix_is_equal_and_the_rest_untouched() -> None:
    cache = KVCache(CacheGeometry(layers=2, slots=3, kv_heads=2, capacity=50, head_size=24))
    rng = np.random.default_rng(0)
    for layer in range(2):
        for part in range(2):
            cache.array(layer, part)[...] = rng.standard_normal((3, 2, 50, 24))
    before = [cache.array(layer, part).copy() for layer in range(2) for part in range(2)]
    cache.copy(2, 0, tokens=31)
    after = [cache.array(layer, part).copy() for layer in range(2) for part in range(2)]
    for old, new in zip(before, after, strict=True):
        assert (new[0, :, :31] == old[2, :, :31]).all()
        assert (new[0, :, 31:] == old[0, :, 31:]).all()
        assert (new[1:] == old[1:]).all()
    cache.close()


def test_releasing_one_slot_leaves_its_neighbours() -> None:
    cache = KVCache(CacheGeometry(layers=1, slots=3, kv_heads=2, capacity=50, head_size=24))
    array = cache.array(0, 1)
    array[...] = np.arange(3)[:, None, None, None] + 1
    cache.release(1)
    assert (array[0] == 1).all()
    assert (array[2] == 3).all()
    del array
    cache.close()


def test_closing_twice_is_harmless() -> None:
    cache = KVCache(GEOMETRY)
    cache.close()
    cache.close()


def test_a_view_outlives_the_cache() -> None:
    cache = KVCache(GEOMETRY)
    view = cache.array(1, 0)
    view[2, 1, 5] = 3.0
    cache.close()
    assert (view[2, 1, 5] == 3.0).all()


@pytest.mark.parametrize("capacity", [1 << 48, 1 << 80])
def test_more_than_the_system_has_addresses_for_is_an_error_with_a_hint(capacity: int) -> None:
    geometry = CacheGeometry(layers=1, slots=1, kv_heads=8, capacity=capacity, head_size=64)
    with pytest.raises(RunError, match="refuses to reserve") as caught:
        KVCache(geometry)
    assert "--context" in str(caught.value.hint)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_more_than_the_memory_can_be_reserved() -> None:
    """What a slot may hold costs nothing until it holds it."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    row = 2 * 64 * 4
    cache = KVCache(CacheGeometry(1, 1, 1, capacity=2 * total // row, head_size=64))
    cache.array(0, 1)[0, 0, -1] = 1.0
    cache.close()
