from __future__ import annotations

import pytest

from edge_runtime.engine.sequence import Sequence
from edge_runtime.engine.waiting import WaitingQueue
from edge_runtime.errors import QueueFullError
from edge_runtime.generation.params import SamplingParams


def waiter(priority: int = 0) -> Sequence:
    return Sequence((1,), SamplingParams(), priority=priority)


def test_the_most_urgent_comes_first_and_then_the_earliest() -> None:
    queue = WaitingQueue()
    first, urgent, second, idle = waiter(), waiter(5), waiter(), waiter(-1)
    for sequence in (idle, second, first, urgent):
        queue.add(sequence)
    assert list(queue) == [urgent, first, second, idle]


def test_one_that_is_put_back_is_ahead_of_all_that_came_later() -> None:
    queue = WaitingQueue()
    ran, waits = waiter(), waiter()
    queue.add(waits)
    queue.put_back(ran)
    assert list(queue) == [ran, waits]


def test_a_full_queue_says_how_many_wait_and_still_takes_one_back() -> None:
    queue = WaitingQueue(2)
    ran = waiter()
    queue.add(waiter())
    queue.add(waiter())
    with pytest.raises(QueueFullError, match=r"2 requests wait already, and 2 may") as caught:
        queue.add(waiter())
    assert (caught.value.waiting, caught.value.max_waiting) == (2, 2)
    queue.put_back(ran)
    assert next(iter(queue)) is ran


def test_an_empty_queue_has_no_head() -> None:
    queue = WaitingQueue()
    sequence = waiter()
    queue.add(sequence)
    queue.remove(sequence)
    assert (list(queue), len(queue)) == ([], 0)
