"""Gives drafts to decode steps, and counts what became of them.

A step with drafts is still one step of one sequence, with several tokens; that its drafts are right
shows only in its logits. Drafts go to a sequence that decodes alone: several rows with tokens held
and several new ones each need an operator of onnxruntime 1.32, and where several sequences decode
together a step's cost is shared already.

Knows plans and tokens; knows no array and no session.
"""

from __future__ import annotations

from dataclasses import replace

from edge_runtime.engine.metrics import EngineMetrics
from edge_runtime.engine.scheduler import StepPlan
from edge_runtime.engine.sequence import Sequence
from edge_runtime.generation.speculation import MAX_DRAFT_TOKENS, PromptLookup, StepCost


class Drafting:
    """Prompt-lookup drafts for the sequences of one engine.

    Args:
        chunk_size: most tokens of a step.
        context_length: tokens that a sequence may hold.
        metrics: where drafts are counted.
    """

    def __init__(self, *, chunk_size: int, context_length: int, metrics: EngineMetrics) -> None:
        self._most = min(MAX_DRAFT_TOKENS, chunk_size - 1)
        self._context_length = context_length
        self._metrics = metrics
        self._cost = StepCost()
        self._lookups: dict[int, PromptLookup] = {}

    def extend(self, plan: StepPlan, *, spare_tokens: int | None = None) -> StepPlan:
        """The plan, with drafts where one sequence decodes and drafts are likely to pay.

        Args:
            plan: as scheduled.
            spare_tokens: most drafts that the cache has room for; None is without a limit.
        """
        if plan.is_prefill or len(plan.sequences) > 1:
            return plan
        (sequence,) = plan.sequences
        lookup = self._lookups.get(sequence.id)
        if lookup is None:
            lookup = self._lookups[sequence.id] = PromptLookup(sequence.tokens)
        most = self._room(sequence)
        if spare_tokens is not None:
            most = min(most, spare_tokens)
        drafts = lookup.draft(most=most, cost=self._cost)
        if not drafts:
            return plan
        return replace(plan, token_counts=(1 + len(drafts),), drafts=tuple(drafts))

    def count_step(self, plan: StepPlan, elapsed_s: float) -> None:
        """Count a step that :meth:`extend` has seen, and the drafts in it."""
        if plan.is_prefill or len(plan.sequences) > 1:
            return
        drafted = len(plan.drafts)
        self._cost.observe(drafted=drafted, seconds=elapsed_s)
        if drafted:
            (sequence,) = plan.sequences
            sequence.draft_tokens += drafted
            self._metrics.add(draft_tokens_proposed=drafted)

    def accept(self, sequence: Sequence) -> None:
        """Count a draft that was right: its keys and values are in the cache already."""
        sequence.held_tokens += 1
        sequence.accepted_draft_tokens += 1
        self._metrics.add(draft_tokens_accepted=1)

    def forget(self, sequence: Sequence) -> None:
        """Drop what is known of a sequence, which is finished."""
        self._lookups.pop(sequence.id, None)

    def _room(self, sequence: Sequence) -> int:
        """Drafts that may still become part of the answer: beside them comes one token more."""
        left = self._context_length - len(sequence.tokens)
        if sequence.params.max_tokens is not None:
            left = min(left, sequence.params.max_tokens - sequence.completion_tokens)
        return min(self._most, left - 1)
