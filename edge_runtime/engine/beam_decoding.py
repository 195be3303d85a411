"""Runs a beam search over the rows of the cache: a row for each beam, all in one step.

The prompt is read once, as any request's, and its row copied. A beam stays in the row of the one
that it goes on from; where several go on from one, the others take the rows of beams that were
dropped, and copy what differs. Knows rows and the search; knows no text.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Ordered

import numpy as np

from edge_runtime.engine.executor import Executor
from edge_runtime.engine.metrics import EngineMetrics, StepKind
from edge_runtime.engine.model_runner import RunTerminatedError, StepInput
from edge_runtime.engine.scheduler import Scheduler
from edge_runtime.engine.slots import Trim
from edge_runtime.errors import InvalidParameterError
from edge_runtime.generation.beam import BeamParams, BeamSearch, Hypothesis


def most_tokens(
    params: BeamParams,
    *,
    prompt_tokens: int,
    slots: int,
    context_length: int,
    cache_tokens: int | None,
) -> int:
    """Most tokens of an answer for which there is room.

    Raises:
        InvalidParameterError: more beams than slots, or than the cache may hold of this prompt.
    """
    width = params.width
    if width > slots:
        raise InvalidParameterError(
            f"{width} beams are more than the {slots} slots", hint=f"load with {width} slots"
        )
    # The last token of an answer is never evaluated.
    room = max(1, context_length - prompt_tokens)
    if cache_tokens is not None:
        room = min(room, cache_tokens // width - prompt_tokens + 1)
    if room < 1:
        raise InvalidParameterError(
            f"{width} beams of {prompt_tokens} tokens are more than the {cache_tokens} tokens that "
            "the cache may hold"
        )
    return room if params.max_tokens is None else min(room, params.max_tokens)


class BeamSlots:
    """The slots of an engine that nothing else uses, for beams.

    Args:
        scheduler: whose slots they are.
        executor: runs steps and copies rows.
        metrics: where steps are counted.
        slots: how many there are.
    """

    def __init__(
        self, scheduler: Scheduler, executor: Executor, metrics: EngineMetrics, *, slots: int
    ) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._metrics = metrics
        self._slots = range(slots)

    def search(self, search: BeamSearch, prompt_ids: Ordered[int]) -> list[Hypothesis]:
        """Search until the end, for a prompt that is warm in a slot and stays so.

        What else the slots hold is forgotten.

        Raises:
            RunError: a step failed, the engine is closed, or its cache cannot be copied.
        """
        slot = self._scheduler.slot_of(prompt_ids)
        assert slot is not None, "the prompt was read just now"
        self._scheduler.forget_warm_tokens()
        try:
            found = _Decoding(self._executor, prompt_ids, slot, self._metrics).run(search)
        except BaseException:
            self._executor.release(self._slots)
            raise
        kept = len(prompt_ids)
        self._executor.apply(Trim(i, kept if i == 0 else 0) for i in self._slots)
        self._scheduler.fill(0, prompt_ids)
        return found


class _Decoding:
    """One search over the first rows of the cache; ``slot`` is the row that holds the prompt."""

    def __init__(
        self, executor: Executor, prompt_ids: Ordered[int], slot: int, metrics: EngineMetrics
    ) -> None:
        self._executor = executor
        self._metrics = metrics
        self._prompt_tokens = len(prompt_ids)
        # The last token is evaluated again: its logits are needed.
        self._held = len(prompt_ids) - 1
        self._pending = [prompt_ids[-1]]
        if slot != 0:
            executor.copy(slot, 0, first=0, tokens=self._held)
        self._rows = [0]  # of each beam
        self._with_prompt = {0}

    def run(self, search: BeamSearch) -> list[Hypothesis]:
        while search.beams:
            step = self._step()
            before_s = time.perf_counter()
            try:
                logits = self._executor.run(step)
            except RunTerminatedError:
                logits = self._executor.run(step)  # a cancel that came when its run was over
            rows = len(step.token_ids)
            elapsed_s = time.perf_counter() - before_s
            self._metrics.count_step(
                StepKind.DECODE, rows=rows, tokens=rows, width=1, seconds=elapsed_s
            )
            self._held += 1
            parents = search.advance(logits[self._rows, 0])
            self._fork(parents)
            self._pending = [beam.tokens[-1] for beam in search.beams]
        return search.hypotheses()

    def _step(self) -> StepInput:
        """A token for each beam; rows between theirs are evaluated, too: a step reads neighbours."""
        rows = max(self._rows) + 1
        ids = np.full((rows, 1), self._pending[0], np.int64)
        ids[self._rows, 0] = self._pending
        return StepInput(
            first_slot=0,
            token_ids=ids,
            held=np.full(rows, self._held, np.int32),
            lengths=np.ones(rows, np.int32),
            logits_indices=np.zeros((rows, 1), np.int64),
        )

    def _fork(self, parents: Ordered[int]) -> None:
        """Give each new beam a row with what the one that it goes on from holds."""
        sources = [self._rows[parent] for parent in parents]
        taken: set[int] = set()
        free = iter(sorted(set(range(len(parents) + len(self._rows))) - set(sources)))
        rows = []
        for source in sources:
            if source not in taken:
                row = source
            else:
                row = next(free)
                first = self._prompt_tokens if row in self._with_prompt else 0
                self._executor.copy(source, row, first=first, tokens=self._held)
                self._with_prompt.add(row)
            taken.add(row)
            rows.append(row)
        self._rows = rows
