"""A soak on doubles: every request comes to its end, and what goes wrong is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from edge_tools.soak import Sample, SoakError, report, soak
from edge_tools.soak_load import SoakRequest, soak_requests
from edge_tools.soak_run import SoakTally, run_soak
from edge_tools.soak_worker import SoakOrder
from support.scripted_engine import TOKENIZER, RowsOf, make_engine

from edge_runtime.engine.engine import Engine
from edge_runtime.engine.options import EngineOptions
from edge_runtime.testing import ScriptedRunner

CONTEXT = 100


def requests(count: int, seed: int = 3) -> list[SoakRequest]:
    size = TOKENIZER.vocabulary_size
    return list(soak_requests(count, seed=seed, context_length=CONTEXT, vocabulary_size=size))


def scripted(options: EngineOptions, *, fail_at: Sequence[int] = ()) -> Engine:
    def script(seen: Sequence[int]) -> int:
        return (seen[-1] * 7 + len(seen)) % 250

    size = TOKENIZER.vocabulary_size
    runner = ScriptedRunner(script, vocabulary_size=size, fail_at=fail_at)
    engine, _ = make_engine(
        script, context=CONTEXT, options=options, runner=runner, cache=RowsOf(runner)
    )
    return engine


def soaked(engine: Engine, count: int = 120) -> SoakTally:
    return run_soak(engine, iter(requests(count)), parallel=12, report=lambda ended: None)


def test_a_soak_has_every_kind_of_request_and_the_same_seed_gives_the_same() -> None:
    found = requests(400)
    assert found == requests(400) != requests(400, seed=4)
    assert [r.number for r in found] == list(range(400))
    kinds = Counter(
        "too long" if r.too_long else "whole" if r.cancel_after is None else "cancelled"
        for r in found
    )
    assert min(kinds["too long"], kinds["cancelled"], kinds["whole"]) > 5
    assert any(r.cancel_after == 0 for r in found)
    assert all((len(r.prompt_ids) > CONTEXT) == r.too_long for r in found)
    assert len({r.prompt_ids for r in found}) < 400, "some ask for several answers"


@pytest.mark.parametrize(
    "options",
    [
        EngineOptions(slots=4, chunk_size=16),
        EngineOptions(slots=4, chunk_size=16, cache_tokens=150),
        EngineOptions(slots=4, chunk_size=16, cache_tokens=120, admission="optimistic"),
        EngineOptions(slots=1, chunk_size=16, speculation="prompt-lookup"),
    ],
    ids=["slots", "budget", "optimistic", "drafts"],
)
def test_no_request_is_lost_and_every_slot_comes_back(options: EngineOptions) -> None:
    engine = scripted(options)
    tally = soaked(engine)
    assert tally.problems == []
    assert sum(tally.ends.values()) == tally.requests == 120
    assert set(tally.ends) == {"length", "cancelled", "refused"}


def test_a_run_that_fails_is_told_and_the_others_still_end() -> None:
    tally = soaked(scripted(EngineOptions(slots=4, chunk_size=16), fail_at=(40,)))
    assert tally.ends["error"] >= 1
    assert len(tally.problems) == tally.ends["error"]
    assert "scripted to fail" in tally.problems[0]
    assert sum(tally.ends.values()) == 120


def order(count: int = 100) -> SoakOrder:
    return SoakOrder(
        bundle="none",
        memory_cap_bytes=1000,
        requests=count,
        seed=1,
        slots=1,
        context_length=10,
        threads=1,
        admission="reserve",
        cache_tokens=None,
        data_limit=False,
    )


def worker_result(**changes: Any) -> dict[str, Any]:
    return {"requests": 100, "ends": {"length": 100}, "problems": [], **changes}


def test_memory_over_the_cap_growing_memory_and_lost_requests_fail_a_soak() -> None:
    flat = [Sample(n, 900) for n in range(100)]
    assert report(order(), flat, worker_result(), 1.0).failures == []
    high = [*flat, Sample(50, 1001)]
    assert "over" in report(order(), high, worker_result(), 1.0).failures[0]
    growing = [Sample(n, 800 + n) for n in range(100)]
    assert "grew" in report(order(), growing, worker_result(), 1.0).failures[0]
    lost = worker_result(ends={"length": 99})
    assert report(order(), flat, lost, 1.0).failures == ["99 of 100 requests ended"]


def test_a_worker_that_dies_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SoakError, match="exit code 1"):
        soak(order())
    assert "none" in capfd.readouterr().err
