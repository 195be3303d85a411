"""This runtime at the far end of the pipe, so that it is measured as its peers are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from edge_runtime import __version__
from edge_runtime.engine.engine import Engine, EngineOptions
from edge_runtime.generation.params import SamplingParams
from edge_tools.peers.worker import serve

# Rows of the cache cost nothing before they are used.
_STREAMS = 4


class Runtime:
    """One bundle in one engine."""

    version = __version__

    def __init__(self, path: str, threads: int, context_length: int) -> None:
        started = time.perf_counter()
        options = EngineOptions(context_length=context_length, threads=threads, slots=_STREAMS)
        self._engine = Engine.load(path, options)
        self.load_s = time.perf_counter() - started

    def generate(self, ids: Sequence[int], count: int) -> dict[str, Any]:
        """Greedy tokens after ``ids`` from an empty cache, with the time of the first and rest."""
        self._engine.reset()
        return self._timed(ids, count)

    def cached(self, ids: Sequence[int], more: Sequence[int]) -> dict[str, Any]:
        """Seconds to the first token of ``ids + more`` when ``ids`` has just been read."""
        self._engine.reset()
        self._timed(ids, 1)
        return {"first_s": self._timed([*ids, *more], 1)["first_s"]}

    def together(self, prompts: Sequence[Sequence[int]], count: int) -> dict[str, Any]:
        """Seconds to decode ``count`` tokens after each prompt, all at once, prompts read."""
        engine = self._engine
        engine.reset()
        arrivals: list[list[float]] = [[] for _ in prompts]
        params = SamplingParams(temperature=0.0, max_tokens=count + 1, ignore_eos=True)

        def note(times: list[float], _: object) -> None:
            times.append(time.perf_counter())

        for ids, times in zip(prompts, arrivals, strict=True):
            engine.submit(ids, params, emit=partial(note, times))
        while engine.has_work:
            engine.step()
        begun = max(times[0] for times in arrivals)
        ended = max(times[-1] for times in arrivals)
        tokens = sum(sum(t > begun for t in times) for times in arrivals)
        return {"tokens": tokens, "seconds": ended - begun}

    def _timed(self, ids: Sequence[int], count: int) -> dict[str, Any]:
        params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
        tokens, arrivals = [], []
        started = time.perf_counter()
        for token in self._engine.generate_tokens(ids, params):
            arrivals.append(time.perf_counter())
            tokens.append(token.token_id)
        return {
            "tokens": tokens,
            "first_s": arrivals[0] - started,
            "rest_s": arrivals[-1] - arrivals[0],
        }


if __name__ == "__main__":
    serve(Runtime)
