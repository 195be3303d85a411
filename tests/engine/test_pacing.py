from __future__ import annotations

from edge_runtime.engine.pacing import ChunkPacer


def measured(
    bound_s: float | None, *, token_s: float, decode_s: float, chunk: int = 64
) -> ChunkPacer:
    """A pacer that has seen many steps of one cost."""
    pacer = ChunkPacer(chunk, bound_s)
    for _ in range(60):
        pacer.count_prefill(32, 32 * token_s)
        pacer.count_decode(decode_s)
    return pacer


def test_without_streams_or_without_a_bound_chunks_are_full() -> None:
    assert measured(0.01, token_s=1.0, decode_s=1.0).chunk_tokens(0) == 64
    assert measured(None, token_s=1.0, decode_s=1.0).chunk_tokens(3) == 64


def test_a_decode_step_and_a_chunk_stay_under_the_bound() -> None:
    pacer = measured(0.050, token_s=0.001, decode_s=0.010)
    assert pacer.chunk_tokens(1) == 32, "40 ms are left, in multiples of 8 tokens"
    assert pacer.chunk_tokens(2) == 24, "two groups of streams take two steps"


def test_a_fast_device_reads_full_chunks() -> None:
    assert measured(0.100, token_s=0.0006, decode_s=0.005).chunk_tokens(1) == 64


def test_a_bound_that_cannot_be_kept_does_not_starve_prompts() -> None:
    assert measured(0.010, token_s=0.01, decode_s=0.1).chunk_tokens(1) == 8
    assert measured(0.010, token_s=0.01, decode_s=0.1, chunk=4).chunk_tokens(1) == 4


def test_the_first_chunk_beside_a_stream_is_small() -> None:
    assert ChunkPacer(64, 0.1).chunk_tokens(1) == 8


def test_a_chunk_that_has_come_to_cost_more_shrinks() -> None:
    pacer = measured(0.050, token_s=0.0005, decode_s=0.005)
    before = pacer.chunk_tokens(1)
    for _ in range(30):
        pacer.count_prefill(64, 64 * 0.002)
    assert pacer.chunk_tokens(1) < before == 64


def test_a_single_token_says_nothing_about_chunks() -> None:
    pacer = measured(0.050, token_s=0.0005, decode_s=0.005)
    for _ in range(30):
        pacer.count_prefill(1, 0.01)
    assert pacer.chunk_tokens(1) == 64


def test_unsteady_costs_leave_a_margin() -> None:
    steady, unsteady = ChunkPacer(64, 0.05), ChunkPacer(64, 0.05)
    for i in range(200):
        steady.count_prefill(32, 0.032)
        unsteady.count_prefill(32, 0.016 if i % 2 else 0.048)
    assert unsteady.chunk_tokens(1) < steady.chunk_tokens(1)
