"""The engine's one loop: schedule, run, sample, emit, until there is nothing left to do.

Token ids in, deltas out. Knows no prompt in words, no chat template and no bundle directory:
:mod:`edge_runtime.engine.engine` adds those.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Ordered
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from edge_runtime.bundle import Manifest
from edge_runtime.engine.admission import TokenBudget
from edge_runtime.engine.drafting import Drafting
from edge_runtime.engine.executor import Executor, engine_closed
from edge_runtime.engine.kv_cache import KVCache
from edge_runtime.engine.memory import MemoryReport, process_memory
from edge_runtime.engine.metrics import EngineMetrics, Gauges, StepKind
from edge_runtime.engine.model_runner import ModelRunner, RunTerminatedError
from edge_runtime.engine.options import AdmissionMode, ContextFull, EngineOptions, Speculation
from edge_runtime.engine.output import Emit, RequestOutput
from edge_runtime.engine.pressure import PressureMonitor
from edge_runtime.engine.prompt_check import checked_prompt
from edge_runtime.engine.request import Delta, FinishReason
from edge_runtime.engine.scheduler import Scheduler, StepPlan
from edge_runtime.engine.sequence import Phase, Sequence
from edge_runtime.engine.slots import Admission
from edge_runtime.engine.step_input import planned_input
from edge_runtime.errors import (
    EdgeRuntimeError,
    InvalidParameterError,
    QueueFullError,
    RunError,
)
from edge_runtime.generation.params import SamplingParams, sampling_params
from edge_runtime.guidance.constraint import TokenConstraint
from edge_runtime.providers.memory_advice import MappedFiles
from edge_runtime.text.tokenizer import Tokenizer

Core = TypeVar("Core", bound="EngineCore")


class EngineCore:
    """Runs requests over one model.

    One thread uses it; :meth:`cancel` and :meth:`close` may also be called from another. The parts
    come from outside, so that any of them can be a double.

    Args:
        manifest: the bundle's promises.
        runner: evaluates tokens.
        tokenizer: gives the bytes of tokens.
        context_length: tokens that a sequence may hold.
        options: chunk size and slots.
        cache: the runner's cache, whose pages are given back; None where it has none.
        mapped_weights: the weights files, whose pages are let go now and then; None where there
            are none.
    """

    def __init__(
        self,
        manifest: Manifest,
        *,
        runner: ModelRunner,
        tokenizer: Tokenizer,
        context_length: int,
        options: EngineOptions,
        cache: KVCache | None = None,
        mapped_weights: MappedFiles | None = None,
    ) -> None:
        self.manifest = manifest
        self.tokenizer = tokenizer
        if options.cache_tokens is not None:
            # One request alone must always fit.
            context_length = min(context_length, options.cache_tokens)
        self.context_length = context_length
        self.metrics = EngineMetrics()
        self._options = options
        self._executor = Executor(runner, cache, mapped_weights)
        self._scheduler = Scheduler(
            slots=options.slots,
            chunk_size=options.chunk_size,
            budget=TokenBudget(
                options.cache_tokens,
                context_length=context_length,
                mode=AdmissionMode(options.admission),
            ),
            max_waiting=options.max_waiting,
            can_copy=cache is not None,
            max_inter_token_s=(
                None if options.max_inter_token_ms is None else options.max_inter_token_ms / 1000
            ),
        )
        self._drafting: Drafting | None = None
        if options.speculation == Speculation.PROMPT_LOOKUP:
            self._drafting = Drafting(
                chunk_size=options.chunk_size, context_length=context_length, metrics=self.metrics
            )
        self._pressure = (
            None
            if options.memory_cap_bytes is None
            else PressureMonitor(
                options.memory_cap_bytes,
                resident_bytes=lambda: process_memory().resident_bytes,
                scheduler=self._scheduler,
                executor=self._executor,
                metrics=self.metrics,
            )
        )
        self._slides = ContextFull(options.context_full) is ContextFull.SLIDE
        if self._slides and options.keep_tokens > context_length // 2:
            raise InvalidParameterError(
                f"keep_tokens is {options.keep_tokens}, more than half of the context of "
                f"{context_length} tokens",
                hint="keep fewer, so that sliding makes room for more than a few tokens",
            )
        self._outputs: dict[int, RequestOutput] = {}
        self._stepping: tuple[Sequence, ...] = ()
        self._end_tokens = frozenset(manifest.tokenizer.end_token_ids)
        self._closed = False

    def close(self) -> None:
        """Let the session and the cache go; a run in another thread is stopped first.

        Requests that are not finished fail with RunError at their next step, and later ones are
        refused with it. Closing twice is harmless.
        """
        self._closed = True
        if self._stepping:
            self._executor.terminate()
        self._executor.close()

    def __enter__(self: Core) -> Core:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def default_params(self, **overrides: Any) -> SamplingParams:
        """Sampling parameters: what is given, then the model's own wishes, then plain defaults.

        Raises:
            InvalidParameterError: a value out of its range.
        """
        return sampling_params(self.manifest.generation, **overrides)

    # What a driver uses

    def submit(
        self,
        prompt_ids: Ordered[int],
        params: SamplingParams | None,
        *,
        emit: Emit,
        priority: int = 0,
        constraint: TokenConstraint | None = None,
        group: object | None = None,
    ) -> Sequence:
        """Queue a request; :meth:`step` works on it and calls ``emit`` for each delta.

        ``emit`` gets an error instead when the request fails, and nothing after that or after a
        delta with a finish reason. It must not raise.

        Args:
            prompt_ids: the prompt.
            params: None takes :meth:`default_params`.
            emit: where its deltas go.
            priority: requests of a higher one start first and are preempted last.
            constraint: what the answer must match, and no other request's; None where it may be
                anything.
            group: the same object for requests with the same prompt that are queued together: one
                of them reads it, and the others wait to copy it.

        Raises:
            EmptyPromptError, PromptTooLongError, InvalidParameterError: nothing was queued.
            QueueFullError: as many requests wait as may.
            RunError: the engine is closed.
        """
        if self._closed:
            raise engine_closed()
        sequence = Sequence(
            self._checked_prompt(prompt_ids),
            params or self.default_params(),
            priority=priority,
            group=group,
        )
        output = RequestOutput(
            sequence,
            emit=emit,
            tokenizer=self.tokenizer,
            vocabulary_size=self.manifest.dimensions.vocabulary_size,
            end_tokens=self._end_tokens,
            context_length=None if self._slides else self.context_length,
            metrics=self.metrics,
            constraint=constraint,
        )
        try:
            self._scheduler.add(sequence)
        except QueueFullError:
            self.metrics.add(requests_refused=1)
            raise
        self._outputs[sequence.id] = output
        self.metrics.add(requests_submitted=1)
        self._set_gauges()
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        """End a request at the next step; one that has the step to itself is stopped inside it.

        May be called from any thread, and more than once.
        """
        sequence.cancel_requested = True
        if self._stepping == (sequence,):
            self._executor.terminate()

    @property
    def has_work(self) -> bool:
        """Whether a request runs or waits."""
        return bool(self._scheduler.unfinished)

    def step(self) -> None:
        """Do one step: a chunk of a prompt, or a token of each running sequence, or drafts of one."""
        for sequence in self._scheduler.unfinished:
            if sequence.cancel_requested:
                self._finish(sequence, Delta("", finish_reason=FinishReason.CANCELLED))
        if self._pressure is not None and (victim := self._pressure.check()) is not None:
            self._outputs[victim.id].count_preemption()
        plan = self._scheduler.schedule()
        self._set_gauges()
        if plan is None:
            return
        if self._drafting is not None:
            plan = self._drafting.extend(plan, spare_tokens=self._scheduler.spare_tokens)
        before_s = time.perf_counter()
        self._prepare(plan)
        self._stepping = plan.sequences
        try:
            if any(s.cancel_requested for s in plan.sequences):
                return  # it came too early to be stopped inside the run
            logits = self._executor.run(planned_input(plan))
        except RunTerminatedError:
            return  # whoever was cancelled is dropped by the next step; others try again
        except RunError as exc:
            self.metrics.add(run_errors=1)
            self._fail(plan.sequences, exc)
            return
        finally:
            self._stepping = ()
        self._advance(plan, logits, time.perf_counter() - before_s)
        # Sampling and emitting, too, are what a stream waits for.
        self._scheduler.count_step(plan, time.perf_counter() - before_s)

    def reset(self) -> None:
        """Forget what finished sequences left in the cache, and give its pages back."""
        self._executor.release(self._scheduler.forget_warm_tokens())

    def memory(self) -> MemoryReport:
        """What the process and its cache hold now."""
        process = process_memory()
        tokens = self._scheduler.held_tokens
        return MemoryReport(
            process.resident_bytes,
            process.anonymous_bytes,
            tokens * self._executor.token_bytes,
            tokens,
        )

    # One step

    def _prepare(self, plan: StepPlan) -> None:
        for sequence in plan.preempted:
            self._outputs[sequence.id].count_preemption()
        for change in plan.changes:
            if isinstance(change, Admission):
                copied = change.copied_from is not None
                self._outputs[change.sequence.id].count_admission(copied=copied)
            if not isinstance(change, Admission) or change.lost_tokens:
                self.metrics.add(prefix_evictions=1)
        self._executor.apply(plan.changes)

    def _advance(self, plan: StepPlan, logits: NDArray[np.float32], elapsed_s: float) -> None:
        self.metrics.count_step(
            _kind(plan),
            rows=len(plan.sequences),
            tokens=sum(plan.token_counts),
            width=max(plan.token_counts),
            seconds=elapsed_s,
        )
        if self._drafting is not None:
            self._drafting.count_step(plan, elapsed_s)
        for row, (sequence, count) in enumerate(
            zip(plan.sequences, plan.token_counts, strict=True)
        ):
            sequence.held_tokens += count - len(plan.drafts)
            self._outputs[sequence.id].count_step(elapsed_s, is_prefill=plan.is_prefill)
            if plan.wants_logits:
                sequence.phase = Phase.DECODE
                self._add_tokens(sequence, logits[row], plan.drafts)

    def _add_tokens(
        self, sequence: Sequence, logits: NDArray[np.float32], drafts: tuple[int, ...]
    ) -> None:
        """Choose the next token, and go on for as long as what is chosen was drafted.

        Each token is chosen as it would be without drafts, from the same distribution and by the
        same random number: a draft is right with just the probability that the distribution gives
        it, and where it is wrong what was chosen follows the rest of the distribution. What wrong
        drafts left in the cache lies past the tokens held, and is written over.

        Args:
            logits: (1 + drafts, V), after the pending token and after each draft.
        """
        output = self._outputs[sequence.id]
        for position, row in enumerate(logits):
            try:
                delta = output.add(row)
            except EdgeRuntimeError as exc:
                self._fail((sequence,), exc)
                return
            except MemoryError:
                self._fail((sequence,), RunError("choosing a token ran out of memory"))
                return
            was_drafted = position < len(drafts) and sequence.tokens[-1] == drafts[position]
            if was_drafted and self._drafting is not None:
                self._drafting.accept(sequence)
            if delta.finish_reason is not None:
                self._finish(sequence, delta)
                return
            slid = self._slides and len(sequence.tokens) >= self.context_length
            if slid:
                dropped = self._scheduler.slide(sequence, self._options.keep_tokens)
                self.metrics.add(slid_tokens=dropped)
                if self._drafting is not None:
                    self._drafting.forget(sequence)  # its places have moved
            output.emit(delta)
            if slid or not was_drafted:
                return

    def _finish(self, sequence: Sequence, delta: Delta) -> None:
        output = self._pop_output(sequence)
        last = output.last(delta)
        assert last.finish_reason is not None
        self._scheduler.finish(sequence, last.finish_reason)
        self._set_gauges()
        output.emit(last)

    def _fail(self, sequences: Ordered[Sequence], error: EdgeRuntimeError) -> None:
        for sequence in sequences:
            self._scheduler.finish(sequence, FinishReason.ERROR)
            self._set_gauges()
            self._pop_output(sequence).fail(error)

    def _pop_output(self, sequence: Sequence) -> RequestOutput:
        if self._drafting is not None:
            self._drafting.forget(sequence)
        return self._outputs.pop(sequence.id)

    def _set_gauges(self) -> None:
        scheduler = self._scheduler
        self.metrics.set_gauges(
            Gauges(
                slots=self._options.slots,
                running=len(scheduler.running),
                waiting=scheduler.waiting,
                cache_tokens=scheduler.held_tokens,
                reserved_tokens=scheduler.claimed_tokens,
                budget_tokens=self._options.cache_tokens,
            )
        )

    def _checked_prompt(self, prompt_ids: Ordered[int]) -> tuple[int, ...]:
        return checked_prompt(
            prompt_ids,
            context_length=self.context_length,
            vocabulary_size=self.manifest.dimensions.vocabulary_size,
        )


def _kind(plan: StepPlan) -> StepKind:
    if plan.is_prefill:
        return StepKind.PREFILL
    return StepKind.VERIFY if plan.drafts else StepKind.DECODE
