"""Runs a soak's requests on an engine and holds each to what must become of it.

Everything is asked through the engine's driver, as a server asks. Knows no memory and no process.
"""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from edge_runtime.engine.driver import EngineDriver, RequestHandle
from edge_runtime.engine.engine import Engine
from edge_runtime.engine.request import Delta, FinishReason
from edge_runtime.errors import PromptTooLongError
from edge_runtime.generation.params import SamplingParams
from edge_tools.soak_load import SoakRequest

# A request that is silent for so long while others are served is lost.
_SILENCE_S = 600.0
_PROGRESS_EVERY = 20


@dataclass
class SoakTally:
    """What became of the requests.

    ``ends`` counts finish reasons and refusals; ``problems`` says in words what must not be.
    """

    requests: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


@dataclass
class _Open:
    request: SoakRequest
    handle: RequestHandle
    deltas: int = 0
    tokens: int = 0


def run_soak(
    engine: Engine,
    requests: Iterator[SoakRequest],
    *,
    parallel: int,
    report: Callable[[int], None],
) -> SoakTally:
    """Keep ``parallel`` requests in flight until all have ended.

    Args:
        engine: used by this function alone meanwhile.
        requests: what to ask.
        parallel: requests handed over at the same time; more than slots, so that some wait.
        report: called with how many have ended, now and then.
    """
    tally = SoakTally()
    events: queue.Queue[tuple[int, Delta | Exception]] = queue.Queue()
    open_requests: dict[int, _Open] = {}
    with EngineDriver(engine) as driver:
        while True:
            while len(open_requests) < parallel:
                request = next(requests, None)
                if request is None:
                    break
                tally.requests += 1
                open_requests[request.number] = _Open(request, _submit(driver, request, events))
                if request.cancel_after == 0:
                    open_requests[request.number].handle.cancel()
            if not open_requests:
                break
            try:
                number, event = events.get(timeout=_SILENCE_S)
            except queue.Empty:
                tally.problems.append(f"lost: requests {sorted(open_requests)} never ended")
                break
            _take(open_requests, tally, number, event)
            ended = tally.requests - len(open_requests)
            if number not in open_requests and ended % _PROGRESS_EVERY == 0:
                report(ended)
    while not events.empty():
        tally.problems.append(f"request {events.get()[0]} was answered after its end")
    _check_slots(engine, tally)
    return tally


def _submit(
    driver: EngineDriver,
    request: SoakRequest,
    events: queue.Queue[tuple[int, Delta | Exception]],
) -> RequestHandle:
    params = SamplingParams(
        # Half greedy, half sampled.
        temperature=float(request.number % 2),
        max_tokens=request.max_tokens,
        seed=request.seed,
        ignore_eos=True,
    )
    return driver.submit(
        request.prompt_ids,
        params,
        listener=lambda event: events.put((request.number, event)),
        priority=request.group % 3,
        group=request.group,
    )


def _take(
    open_requests: dict[int, _Open], tally: SoakTally, number: int, event: Delta | Exception
) -> None:
    found = open_requests.get(number)
    if found is None:
        tally.problems.append(f"request {number} was answered after its end")
        return
    if isinstance(event, Delta):
        found.deltas += 1
        found.tokens += len(event.token_ids)
        if event.finish_reason is None:
            if found.deltas == found.request.cancel_after:
                found.handle.cancel()
            return
    del open_requests[number]
    problem = _problem(found, event)
    if problem is not None:
        tally.problems.append(f"request {number}: {problem}")
    if isinstance(event, Delta):
        assert event.finish_reason is not None
        tally.ends[event.finish_reason.value] += 1
    else:
        tally.ends["refused" if isinstance(event, PromptTooLongError) else "error"] += 1


def _problem(found: _Open, event: Delta | Exception) -> str | None:
    """What is wrong with how a request ended; None where nothing is."""
    request = found.request
    if isinstance(event, Exception):
        if isinstance(event, PromptTooLongError) and request.too_long:
            return None
        return f"failed: {type(event).__name__}: {event}"
    if request.too_long:
        return "was answered, though its prompt is longer than the context"
    if event.finish_reason is FinishReason.CANCELLED and request.cancel_after is not None:
        return None
    whole = event.finish_reason is FinishReason.LENGTH and found.tokens == request.max_tokens
    if whole and event.usage is not None and event.usage.completion_tokens == found.tokens:
        return None
    return f"ended with {event.finish_reason} after {found.tokens} of {request.max_tokens} tokens"


def _check_slots(engine: Engine, tally: SoakTally) -> None:
    gauges = engine.metrics.snapshot().gauges
    if gauges.running or gauges.waiting:
        tally.problems.append(f"{gauges.running} slots kept, {gauges.waiting} requests waiting")
    engine.reset()
    if held := engine.memory().cache_tokens:
        tally.problems.append(f"{held} tokens of the cache kept after everything was forgotten")
