"""From the step that the scheduler planned to the arrays that the runner takes.

Stands between the two, so that neither learns the other's words. Knows no session and no sampling.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered

import numpy as np

from edge_runtime.engine.model_runner import StepInput
from edge_runtime.engine.scheduler import StepPlan


def planned_input(plan: StepPlan) -> StepInput:
    """The pending tokens of each sequence of a plan and its drafts, right-padded to the longest."""
    rows = len(plan.sequences)
    slots = [s.slot for s in plan.sequences]
    first = slots[0]
    assert first is not None
    assert slots == list(range(first, first + rows)), "a step uses neighbouring slots"
    ids = np.zeros((rows, max(plan.token_counts)), np.int64)
    for row, (sequence, count) in enumerate(zip(plan.sequences, plan.token_counts, strict=True)):
        held = sequence.held_tokens
        ids[row, :count] = [*sequence.tokens[held : held + count], *plan.drafts]
    lengths = np.array(plan.token_counts, np.int32)
    if plan.drafts:
        wanted = np.arange(lengths[0])[None]
    elif plan.wants_logits:
        wanted = (lengths - 1)[:, None]
    else:
        wanted = np.zeros((rows, 0), np.int64)
    return StepInput(
        first_slot=first,
        token_ids=ids,
        held=np.array([s.held_tokens for s in plan.sequences], np.int32),
        lengths=lengths,
        logits_indices=wanted.astype(np.int64),
    )


def scoring_input(token_ids: Ordered[int], *, held: int) -> StepInput:
    """A chunk in the first slot, with logits wanted at every position."""
    count = len(token_ids)
    return StepInput(
        first_slot=0,
        token_ids=np.array([token_ids], np.int64),
        held=np.array([held], np.int32),
        lengths=np.array([count], np.int32),
        logits_indices=np.arange(count, dtype=np.int64)[None],
    )
