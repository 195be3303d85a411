"""What is given up when the process comes near its cap, and in which order."""

from __future__ import annotations

import dataclasses

from support.scripted_engine import GREEDY, TOKENIZER, RowsOf, make_engine
from test_admission import counting

from edge_runtime.engine.engine import Engine
from edge_runtime.engine.metrics import PressureAction
from edge_runtime.engine.options import EngineOptions
from edge_runtime.engine.pressure import PressureMonitor
from edge_runtime.engine.request import Delta
from edge_runtime.errors import EdgeRuntimeError
from edge_runtime.testing import ScriptedRunner

CAP = 1000


class Machine:
    """An engine whose resident memory is whatever the test says."""

    def __init__(self, *, slots: int = 3) -> None:
        self.runner = ScriptedRunner(counting, vocabulary_size=TOKENIZER.vocabulary_size)
        self.engine: Engine
        self.engine, _ = make_engine(
            counting,
            options=EngineOptions(slots=slots),
            runner=self.runner,
            cache=RowsOf(self.runner),
        )
        self.resident: int | None = 0
        self.engine._pressure = PressureMonitor(
            CAP,
            resident_bytes=lambda: self.resident,
            scheduler=self.engine._scheduler,
            executor=self.engine._executor,
            metrics=self.engine.metrics,
        )
        self.texts: dict[str, str] = {}

    def submit(self, prompt: str, tokens: int) -> None:
        self.texts[prompt] = ""

        def emit(delta: Delta | EdgeRuntimeError) -> None:
            assert isinstance(delta, Delta)
            self.texts[prompt] += delta.text

        params = dataclasses.replace(GREEDY, max_tokens=tokens)
        self.engine.submit(TOKENIZER.encode(prompt), params, emit=emit)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.engine.step()

    @property
    def actions(self) -> list[int]:
        pressure = self.engine.metrics.snapshot().pressure
        return [pressure[action] for action in PressureAction]

    @property
    def running(self) -> int:
        return self.engine.metrics.snapshot().gauges.running


def letters(prompt: str, count: int) -> str:
    start = ord(prompt[-1]) - ord("a")
    return "".join(chr(ord("a") + (start + 1 + i) % 26) for i in range(count))


def test_under_the_cap_nothing_is_given_up() -> None:
    machine = Machine()
    machine.resident = 960
    machine.submit("abc", 60)
    machine.steps(60)
    assert machine.actions == [0, 0, 0, 0]


def test_things_are_given_up_one_at_a_time_in_order_and_all_answers_are_whole() -> None:
    machine = Machine()
    machine.submit("warm", 1)
    machine.steps(1)
    assert machine.engine.memory().cache_tokens == 4
    for prompt in ("abc", "hij"):
        machine.submit(prompt, 60)
    machine.resident = 990
    seen = []
    for _ in range(40):
        machine.steps(1)
        if not seen or machine.actions != seen[-1]:
            seen.append(machine.actions)
    assert seen == [[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert machine.runner.shrinks == 1
    assert machine.running == 1, "the last one goes on"
    machine.submit("pqr", 5)
    machine.steps(5)
    assert machine.running == 1, "nobody starts beside it"
    machine.resident = 900
    machine.steps(2)
    assert machine.running == 3
    while machine.engine.has_work:
        machine.steps(1)
    assert machine.texts["abc"] == letters("c", 60)
    assert machine.texts["hij"] == letters("j", 60)
    assert machine.texts["pqr"] == letters("r", 5)


def test_under_pressure_one_request_at_a_time_is_still_served() -> None:
    machine = Machine(slots=1)
    machine.resident = 2 * CAP
    for prompt in ("abc", "hij", "pqr"):
        machine.submit(prompt, 30)
    while machine.engine.has_work:
        machine.steps(1)
    assert machine.texts["pqr"] == letters("r", 30)
    assert machine.actions[3] == 0


def test_memory_that_stays_between_the_marks_does_not_hold_requests_up_for_ever() -> None:
    machine = Machine()
    for prompt in ("abc", "hij"):
        machine.submit(prompt, 60)
    machine.resident = 990
    while machine.running != 1:
        machine.steps(1)
    machine.resident = 970
    machine.submit("pqr", 5)
    machine.steps(3)
    assert machine.running == 3


def test_a_system_that_tells_nothing_is_left_alone() -> None:
    machine = Machine()
    machine.resident = None
    machine.submit("abc", 40)
    machine.steps(40)
    assert machine.actions == [0, 0, 0, 0]
