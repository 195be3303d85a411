"""One request's way from logits to deltas: sampled token, text, end or not, times.

Knows sampler, tokenizer and what ends a text; knows no scheduler, no cache and no session.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edge_runtime.engine.metrics import EngineMetrics
from edge_runtime.engine.request import Delta, FinishReason, Usage
from edge_runtime.engine.sequence import Sequence
from edge_runtime.engine.text_stream import TextStream
from edge_runtime.errors import EdgeRuntimeError
from edge_runtime.generation.sampler import Sampler
from edge_runtime.guidance.constraint import TokenConstraint, unpacked
from edge_runtime.text.tokenizer import Tokenizer

Emit = Callable[[Delta | EdgeRuntimeError], None]


class RequestOutput:
    """Extends a sequence by sampled tokens, and says what each adds to the answer.

    Args:
        sequence: the request; its ``tokens`` grow here.
        emit: where deltas go.
        tokenizer: gives the bytes of tokens.
        vocabulary_size: V of the logits.
        end_tokens: the model's own.
        context_length: tokens at which the context is full; None where it never is.
        metrics: where its tokens and times are counted.
        constraint: what the answer must match; None where it may be anything.

    Raises:
        InvalidParameterError: the parameters name a token outside the vocabulary.
    """

    def __init__(
        self,
        sequence: Sequence,
        *,
        emit: Emit,
        tokenizer: Tokenizer,
        vocabulary_size: int,
        end_tokens: frozenset[int],
        context_length: int | None,
        metrics: EngineMetrics,
        constraint: TokenConstraint | None = None,
    ) -> None:
        self.emit = emit
        self._sequence = sequence
        self._end_tokens = end_tokens
        self._context_length = context_length
        self._metrics = metrics
        self._vocabulary_size = vocabulary_size
        self._constraint = constraint
        self._sampler = Sampler(
            sequence.params, prompt_token_ids=sequence.prompt, vocabulary_size=vocabulary_size
        )
        self._text = TextStream(tokenizer, sequence.params)
        self._started_s = time.perf_counter()
        self._ttft_s = 0.0
        self._last_token_s = 0.0
        self._preempted = False
        self._prefill_s = 0.0
        self._decode_s = 0.0

    def count_admission(self, *, copied: bool) -> None:
        """Count that the request was given a slot, with part of its tokens copied into it or not."""
        sequence = self._sequence
        if self._preempted:
            self._metrics.add(recomputed_tokens=sequence.pending_tokens)
            return
        self._metrics.count_admission(
            queue_s=time.perf_counter() - self._started_s,
            prompt_tokens=len(sequence.prompt),
            cached_tokens=sequence.cached_tokens or 0,
            copied=copied,
        )

    def count_preemption(self) -> None:
        """Count that the request has lost its slot for a while."""
        self._preempted = True
        self._metrics.add(preemptions=1)

    def count_step(self, elapsed_s: float, *, is_prefill: bool) -> None:
        """Count a step's seconds."""
        if is_prefill:
            self._prefill_s += elapsed_s
        else:
            self._decode_s += elapsed_s

    def add(self, logits: NDArray[np.float32]) -> Delta:
        """Choose the next token.

        Args:
            logits: (V,) float32, only read.

        Returns:
            What it adds; with a finish reason if the answer ends here, and then
            :meth:`last` makes the last delta of it.

        Raises:
            RunError: the logits are numerically broken.
            GrammarError: the answer cannot go on within its constraint.
        """
        sequence, params = self._sequence, self._sequence.params
        sampled = self._sampler.sample(logits, self._allowed())
        self._count_token()
        token = sampled.token_id
        sequence.tokens.append(token)
        logprobs = () if sampled.logprob is None else (sampled.logprob,)
        if token in params.stop_token_ids or (token in self._end_tokens and not params.ignore_eos):
            return Delta("", (token,), logprobs, FinishReason.STOP)
        if self._constraint is not None:
            self._constraint.accept(token)
        text = self._text.add(token)
        reason: FinishReason | None = None
        if self._text.stopped or (self._constraint is not None and self._constraint.is_complete):
            reason = FinishReason.STOP
        elif self._is_full or sequence.completion_tokens == params.max_tokens:
            reason = FinishReason.LENGTH
        return Delta(text, (token,), logprobs, reason)

    def fail(self, error: EdgeRuntimeError) -> None:
        """Pass on that the request has failed."""
        self._metrics.count_finish(FinishReason.ERROR, time_per_token_s=None)
        self.emit(error)

    def last(self, delta: Delta) -> Delta:
        """``delta``, which ends the answer, with the text that was held back and the usage."""
        text, reason = delta.text, delta.finish_reason
        if not self._text.stopped:
            text += self._text.flush()
            if self._text.stopped and reason is FinishReason.LENGTH:
                # It waited to see whether a longer stop string would come.
                reason = FinishReason.STOP
        sequence = self._sequence
        usage = Usage(
            prompt_tokens=len(sequence.prompt),
            cached_tokens=sequence.cached_tokens or 0,
            completion_tokens=sequence.completion_tokens,
            ttft_s=self._ttft_s,
            prefill_s=self._prefill_s,
            decode_s=self._decode_s,
            draft_tokens=sequence.draft_tokens,
            accepted_draft_tokens=sequence.accepted_draft_tokens,
            dropped_tokens=sequence.dropped_tokens,
        )
        assert reason is not None
        self._metrics.count_finish(reason, time_per_token_s=self._time_per_token_s())
        return replace(delta, text=text, finish_reason=reason, usage=usage)

    @property
    def _is_full(self) -> bool:
        limit = self._context_length
        return limit is not None and len(self._sequence.tokens) >= limit

    def _allowed(self) -> NDArray[np.bool_] | None:
        mask = None if self._constraint is None else self._constraint.allowed_tokens()
        return None if mask is None else unpacked(mask, self._vocabulary_size)

    def _count_token(self) -> None:
        now_s = time.perf_counter()
        if self._sequence.completion_tokens:
            self._metrics.count_next_token(now_s - self._last_token_s)
        else:
            self._ttft_s = now_s - self._started_s
            self._metrics.count_first_token(self._ttft_s)
        self._last_token_s = now_s

    def _time_per_token_s(self) -> float | None:
        gaps = self._sequence.completion_tokens - 1
        first_s = self._started_s + self._ttft_s
        return (self._last_token_s - first_s) / gaps if gaps > 0 else None
