from __future__ import annotations

import pytest

from edge_runtime.engine.memory_plan import (
    SMALLEST_CHUNK,
    SMALLEST_CONTEXT,
    MemoryAsk,
    MemoryCosts,
    MemoryPlan,
    parse_bytes,
    plan_memory,
)
from edge_runtime.errors import InvalidParameterError, MemoryCapError

MB = 10**6
COSTS = MemoryCosts(
    baseline=50 * MB,
    weights_anonymous=100 * MB,
    weights_mapped=20 * MB,
    activations=16 * MB,
    measured_chunk=64,
    cache_token=46_080,
)
ASK = MemoryAsk(context_length=2048, slots=4, chunk_size=64)


def plan(cap: int, ask: MemoryAsk = ASK) -> MemoryPlan:
    made = plan_memory(cap, COSTS, ask)
    assert made.total <= made.cap == cap
    return made


def test_what_fits_is_granted_as_asked_and_every_byte_has_a_line() -> None:
    made = plan(2000 * MB)
    assert made.granted == ASK
    assert made.steps == ()
    assert made.cache == 4 * 2048 * 46_080
    assert made.activations == 16 * MB


def test_the_chunk_gives_way_first() -> None:
    made = plan(588 * MB)
    assert made.granted == MemoryAsk(context_length=2048, slots=4, chunk_size=32)
    assert made.steps == ("chunk 32 (asked for 64)",)
    assert made.activations == 8 * MB


def test_then_slots_one_at_a_time() -> None:
    made = plan(384 * MB)
    assert made.granted == MemoryAsk(2048, 2, SMALLEST_CHUNK)
    assert made.steps == ("chunk 16 (asked for 64)", "slots 2 (asked for 4)")


def test_a_chunk_that_need_not_have_shrunk_is_given_back() -> None:
    made = plan(480 * MB)
    assert made.granted == MemoryAsk(2048, 2, chunk_size=64)
    assert made.steps == ("slots 2 (asked for 4)",)
    assert plan(390 * MB).granted == MemoryAsk(2048, 2, chunk_size=32), "as much of it as fits"


def test_then_the_context_to_the_last_token_that_fits() -> None:
    made = plan(220 * MB)
    granted = made.granted
    assert (granted.slots, granted.chunk_size) == (1, SMALLEST_CHUNK)
    assert SMALLEST_CONTEXT <= granted.context_length < 2048
    assert made.cap - made.total < COSTS.cache_token
    assert made.steps[-1] == f"context {granted.context_length} (asked for 2048)"


INT8_COSTS = MemoryCosts(
    baseline=50 * MB,
    weights_anonymous=104 * MB,
    weights_mapped=20 * MB,
    activations=16 * MB,
    measured_chunk=64,
    cache_token=11_520,
    activations_token=3_000,
)


def plan_with_int8(cap: int, ask: MemoryAsk = ASK) -> MemoryPlan:
    made = plan_memory(cap, COSTS, ask, int8_costs=lambda: INT8_COSTS)
    assert made.total <= made.cap == cap
    return made


def test_the_type_of_the_cache_gives_way_after_the_slots_and_before_the_context() -> None:
    made = plan_with_int8(220 * MB)
    assert made.granted == MemoryAsk(2048, 1, SMALLEST_CHUNK, "int8")
    assert made.steps[-1] == "cache int8 (asked for float32)"
    assert made.cache == 2048 * 11_520
    assert made.activations == 4 * MB + 2048 * 3_000
    assert made.weights_anonymous == 104 * MB


def test_an_int8_cache_is_not_measured_where_there_is_no_need() -> None:
    def costs() -> MemoryCosts:
        raise AssertionError("asked for")

    assert plan_memory(480 * MB, COSTS, ASK, int8_costs=costs) == plan(480 * MB)
    already = MemoryAsk(2048, 1, SMALLEST_CHUNK, "int8")
    lower = plan_memory(205 * MB, INT8_COSTS, already, int8_costs=costs)
    assert [step.split()[0] for step in lower.steps] == ["context"]


def test_after_the_int8_cache_the_context_goes_to_the_last_token_that_fits() -> None:
    made = plan_with_int8(200 * MB)
    assert SMALLEST_CONTEXT <= made.granted.context_length < 2048
    assert made.granted.cache_type == "int8"
    assert made.cap - made.total < 11_520 + 3_000
    assert [step.split()[0] for step in made.steps] == ["chunk", "slots", "cache", "context"]


def test_the_smallest_cap_with_an_int8_cache_is_the_one_that_would_do() -> None:
    with pytest.raises(MemoryCapError) as caught:
        plan_with_int8(150 * MB)
    smallest = caught.value.smallest_cap
    assert plan_with_int8(smallest).granted.context_length == SMALLEST_CONTEXT
    with pytest.raises(MemoryCapError):
        plan_with_int8(smallest - MB)


def test_below_the_last_rung_the_smallest_cap_is_named_and_it_would_do() -> None:
    with pytest.raises(MemoryCapError, match="180 MB") as caught:
        plan(180 * MB)
    smallest = caught.value.smallest_cap
    assert plan(smallest).granted.context_length >= SMALLEST_CONTEXT
    with pytest.raises(MemoryCapError):
        plan(smallest - MB)


def test_a_larger_cap_never_grants_less() -> None:
    tokens = 0
    for cap in range(200, 900, 5):
        granted = plan(cap * MB).granted
        assert granted.slots * granted.context_length >= tokens
        tokens = granted.slots * granted.context_length


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("600M", 600 * MB),
        ("1.5G", 1500 * MB),
        ("512MiB", 512 << 20),
        ("1000", 1000),
        ("2 gb", 2 * 10**9),
    ],
)
def test_sizes_as_people_write_them(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "-1M", "much", "0", "1T5", "nan"])
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidParameterError):
        parse_bytes(text)
