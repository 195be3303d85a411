from __future__ import annotations

import pytest
from edge_tools.bench_engine import answer_rate, decode_rate, first_token_s, inter_token_s
from support.scripted_engine import make_engine

from edge_runtime.engine.engine import EngineOptions


def _following(seen):
    return (seen[-1] + 1) % 200


@pytest.fixture
def engine():
    made, _ = make_engine(_following, options=EngineOptions(slots=4, chunk_size=8), context=2000)
    with made:
        yield made


def test_all_streams_count_in_the_rate(engine):
    assert decode_rate(engine, [[1, 2], [3, 4], [5, 6]], 8) > 0
    assert not engine.has_work


def test_a_first_token_and_a_whole_answer_are_timed(engine):
    assert first_token_s(engine, [1, 2, 3]) > 0
    assert answer_rate(engine, [1, 2, 3]) > 0


def test_gaps_are_those_while_the_other_prompt_is_read(engine):
    gaps = inter_token_s(engine, [1, 2], list(range(100)))
    assert 10 <= len(gaps) <= 20  # one token between any two of thirteen chunks of eight
    assert len(inter_token_s(engine, [1, 2], None)) > 20
    assert not engine.has_work
