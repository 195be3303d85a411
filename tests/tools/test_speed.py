from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from edge_tools.speed import Speeds, Timed, measure_round, medians, time_engine

from edge_runtime.engine.request import TokenDelta
from edge_runtime.errors import UsageError
from edge_runtime.generation.params import SamplingParams

PROMPT = list(range(2048))


class ScriptedTimer:
    """Reads 1,000 tokens a second, writes one in 10 ms and 1 ms more for each 100 held."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def __call__(self, prompt_ids: Sequence[int], count: int) -> Timed:
        held = len(prompt_ids)
        self.asked.append((held, count))
        return Timed(held / 1000, (count - 1) * (0.010 + held // 100 / 1000))


def test_a_round_divides_the_right_tokens_by_the_right_time():
    timer = ScriptedTimer()
    figures = measure_round(timer, PROMPT, 4096)
    assert figures.prefill_512 == pytest.approx(1000)
    assert figures.prefill_2048 == pytest.approx(1000)
    assert figures.decode_0 == pytest.approx(100)
    assert figures.decode_512 == pytest.approx(1 / 0.015)
    assert figures.decode_1500 == pytest.approx(1 / 0.025)
    assert figures.ttft_ms == pytest.approx(128)
    assert sorted(timer.asked) == [(1, 65), (128, 1), (512, 65), (1500, 65), (2048, 1)]


def test_what_the_context_cannot_hold_is_not_measured():
    figures = measure_round(ScriptedTimer(), PROMPT, 1024)
    assert figures.decode_512 is not None
    assert figures.decode_1500 is None
    assert figures.prefill_2048 is None


def test_too_short_a_prompt_is_refused():
    with pytest.raises(UsageError, match="100"):
        measure_round(ScriptedTimer(), PROMPT[:100], 4096)


def test_medians_are_of_each_figure_and_none_stays_none():
    rounds = [Speeds(a, None, a, a, a, a) for a in (3.0, 1.0, 100.0)]
    assert medians(rounds) == Speeds(3.0, None, 3.0, 3.0, 3.0, 3.0)


class CountingEngine:
    """Gives a set number of tokens, and notes what it was asked."""

    def __init__(self, gives: int) -> None:
        self.gives = gives
        self.log: list[object] = []

    def reset(self) -> None:
        self.log.append("reset")

    def generate_tokens(
        self, prompt_ids: Sequence[int], params: SamplingParams
    ) -> Iterator[TokenDelta]:
        self.log.append((len(prompt_ids), params.max_tokens, params.temperature, params.ignore_eos))
        for _ in range(self.gives):
            yield TokenDelta(1, None, None)


def test_the_engine_is_emptied_and_asked_for_greedy_tokens_past_the_end():
    engine = CountingEngine(gives=3)
    result = time_engine(engine, [1, 2], 3)
    assert engine.log == ["reset", (2, 3, 0.0, True)]
    assert result.first_s >= 0
    assert result.rest_s >= 0


def test_an_answer_that_ends_early_is_no_measurement():
    with pytest.raises(UsageError, match="wanted 5 tokens after 2, got 3"):
        time_engine(CountingEngine(gives=3), [1, 2], 5)
