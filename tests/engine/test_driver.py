"""The driver over a scripted engine: its thread, its queue, and what ends them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest
from support.scripted_engine import GREEDY, TOKENIZER, answering, make_engine

from edge_runtime.engine.driver import EngineDriver, RequestHandle
from edge_runtime.engine.engine import Engine
from edge_runtime.engine.options import EngineOptions
from edge_runtime.engine.request import Delta, FinishReason
from edge_runtime.errors import EmptyPromptError, RunError
from edge_runtime.testing import ScriptedRunner


def test_the_driver_streams_from_its_own_thread() -> None:
    engine, _ = make_engine(answering("hi", "hello"))
    with EngineDriver(engine) as driver:
        deltas = list(driver.submit(TOKENIZER.encode("hi"), GREEDY))
    assert "".join(d.text for d in deltas) == "hello"
    assert deltas[-1].finish_reason is FinishReason.STOP


def test_a_request_that_cannot_be_raises_where_it_is_read() -> None:
    engine, _ = make_engine(answering("hi", "hello"))
    with EngineDriver(engine) as driver:
        with pytest.raises(EmptyPromptError):
            list(driver.submit([], GREEDY))
        assert list(driver.submit(TOKENIZER.encode("hi"), GREEDY))


def test_a_driver_is_alive_until_it_is_closed_or_a_defect_ends_it() -> None:
    def defect(seen: Sequence[int]) -> int:
        raise ZeroDivisionError

    engine, _ = make_engine(defect)
    with EngineDriver(engine) as driver:
        assert driver.alive
        with pytest.raises(ZeroDivisionError):
            list(driver.submit(TOKENIZER.encode("hi"), GREEDY))
        assert not driver.alive
    engine, _ = make_engine(answering("hi", "hello"))
    driver = EngineDriver(engine)
    driver.close()
    assert not driver.alive


def test_a_listener_gets_the_deltas_instead_of_who_iterates() -> None:
    engine, _ = make_engine(answering("hi", "hello"))
    heard: list[Delta | Exception] = []
    done = threading.Event()

    def listen(delta: Delta | Exception) -> None:
        heard.append(delta)
        if isinstance(delta, Exception) or delta.finish_reason is not None:
            done.set()

    with EngineDriver(engine) as driver:
        handle = driver.submit(TOKENIZER.encode("hi"), GREEDY, listener=listen)
        assert done.wait(10)
        assert list(handle) == []
        assert "".join(d.text for d in heard if isinstance(d, Delta)) == "hello"
        done.clear()
        driver.submit([], GREEDY, listener=listen)
        assert done.wait(10)
    assert isinstance(heard[-1], EmptyPromptError)


def endless(seen: Sequence[int]) -> int:
    time.sleep(0.001)
    return ord("a")


def test_cancelling_a_handle_ends_its_stream() -> None:
    engine, _ = make_engine(endless, context=100_000)
    with EngineDriver(engine) as driver:
        handle = driver.submit(TOKENIZER.encode("p"), GREEDY)
        reasons = []
        for count, delta in enumerate(handle):
            if count == 3:
                handle.cancel()
            reasons.append(delta.finish_reason)
        assert reasons[-1] is FinishReason.CANCELLED
        assert not engine.has_work


def test_a_queued_requests_leaving_does_not_touch_the_running_one() -> None:
    engine, _ = make_engine(endless, context=50)
    with EngineDriver(engine) as driver:
        running = driver.submit(TOKENIZER.encode("p"), GREEDY)
        queued = driver.submit(TOKENIZER.encode("q"), GREEDY)
        queued.cancel()
        assert [d.finish_reason for d in queued] == [FinishReason.CANCELLED]
        assert [d.finish_reason for d in running][-1] is FinishReason.LENGTH


def test_closing_the_driver_cancels_what_runs_and_ends_the_thread() -> None:
    engine, _ = make_engine(endless, context=100_000)
    driver = EngineDriver(engine)
    handle = driver.submit(TOKENIZER.encode("p"), GREEDY)
    next(iter(handle))
    driver.close()
    assert [d.finish_reason for d in handle][-1] is FinishReason.CANCELLED
    with pytest.raises(RunError):
        driver.submit(TOKENIZER.encode("p"), GREEDY)
    assert "engine" not in {t.name for t in threading.enumerate()}


def test_a_handle_that_was_read_ends_at_once_when_read_again() -> None:
    engine, _ = make_engine(answering("hi", "hello"))
    with EngineDriver(engine) as driver:
        handle = driver.submit(TOKENIZER.encode("hi"), GREEDY)
        assert list(handle)
        assert list(handle) == []
        refused = driver.submit([], GREEDY)
        with pytest.raises(EmptyPromptError):
            list(refused)
        assert list(refused) == []


def test_reading_goes_on_where_it_was_left() -> None:
    engine, _ = make_engine(answering("hi", "hello"))
    with EngineDriver(engine) as driver:
        handle = driver.submit(TOKENIZER.encode("hi"), GREEDY)
        first = next(iter(handle)).text
        assert first + "".join(d.text for d in handle) == "hello"


def test_a_request_of_the_wrong_types_fails_alone() -> None:
    engine, _ = make_engine(answering("hi", "hello"))
    with EngineDriver(engine) as driver:
        wrong = driver.submit(TOKENIZER.encode("hi"), {"temperature": 0})  # type: ignore[arg-type]
        right = driver.submit(TOKENIZER.encode("hi"), GREEDY)
        with pytest.raises(AttributeError):
            list(wrong)
        assert "".join(d.text for d in right) == "hello"


def failing_engine(started: threading.Event, go_on: threading.Event) -> Engine:
    """Its second run fails in a way that nobody has foreseen, when it is told to go on."""

    def before_run(number: int) -> None:
        if number == 2:
            started.set()
            assert go_on.wait(5)
            raise ZeroDivisionError("a defect")

    size = TOKENIZER.vocabulary_size
    runner = ScriptedRunner(answering("hi", "hello"), vocabulary_size=size, before_run=before_run)
    return make_engine(answering("", ""), runner=runner)[0]


def test_a_defect_reaches_everybody_who_waits_also_in_the_queue() -> None:
    started, go_on = threading.Event(), threading.Event()
    driver = EngineDriver(failing_engine(started, go_on))
    running = driver.submit(TOKENIZER.encode("hi"), GREEDY)
    assert started.wait(5)
    queued = driver.submit(TOKENIZER.encode("hi"), GREEDY)
    go_on.set()
    for handle in (running, queued):
        with pytest.raises(ZeroDivisionError, match="a defect"):
            list(handle)
    driver.close()
    with pytest.raises(RunError, match="has ended"):
        driver.submit(TOKENIZER.encode("hi"), GREEDY)


def test_closing_twice_is_harmless() -> None:
    engine, _ = make_engine(answering("hi", "hello"))
    with EngineDriver(engine) as driver:
        driver.close()


def test_whatever_is_submitted_while_closing_ends_or_is_refused() -> None:
    options = EngineOptions(max_waiting=10**6)
    engine, _ = make_engine(endless, context=100_000, options=options)
    driver = EngineDriver(engine)
    handles: list[RequestHandle] = []
    refused = threading.Event()

    def submit() -> None:
        try:
            while True:
                handles.append(driver.submit(TOKENIZER.encode("p"), GREEDY))
        except RunError:
            refused.set()

    threads = [threading.Thread(target=submit) for _ in range(3)]
    for thread in threads:
        thread.start()
    while not handles:
        time.sleep(0.001)
    driver.close()
    for thread in threads:
        thread.join(5)
    assert refused.is_set()
    for handle in handles:
        assert [d.finish_reason for d in handle][-1] is FinishReason.CANCELLED
