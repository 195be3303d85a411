"""Runs several requests for one prompt until all are finished; the prompt is read once.

Knows the engine's loop; knows no ranking.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered

from edge_runtime.engine.core import EngineCore
from edge_runtime.engine.request import Completion, Delta
from edge_runtime.engine.sequence import Phase, Sequence
from edge_runtime.errors import EdgeRuntimeError
from edge_runtime.generation.params import SamplingParams
from edge_runtime.guidance.constraint import TokenConstraint


def generate_together(
    engine: EngineCore,
    prompt_ids: Ordered[int],
    asked: Ordered[tuple[SamplingParams, TokenConstraint | None]],
) -> list[Completion]:
    """The answers, in the order in which they were asked for.

    Args:
        engine: used by this thread alone.
        prompt_ids: the prompt of all.
        asked: how each is to be generated.

    Raises:
        EdgeRuntimeError: one of them was refused or has failed; the others are cancelled.
    """
    group = object()
    come: list[list[Delta | EdgeRuntimeError]] = [[] for _ in asked]
    running: list[Sequence] = []
    try:
        for (params, constraint), deltas in zip(asked, come, strict=True):
            running.append(
                engine.submit(
                    prompt_ids, params, emit=deltas.append, constraint=constraint, group=group
                )
            )
        while any(sequence.phase is not Phase.FINISHED for sequence in running):
            engine.step()
            for deltas in come:
                if deltas and isinstance(deltas[-1], EdgeRuntimeError):
                    raise deltas[-1]
    finally:
        for sequence in running:
            engine.cancel(sequence)
        while any(sequence.phase is not Phase.FINISHED for sequence in running):
            engine.step()
    return [Completion.of(d for d in deltas if isinstance(d, Delta)) for deltas in come]
