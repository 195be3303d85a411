"""The engine: schedule, run, sample, emit, until there is nothing left to do.

Three rungs for callers: tokens (:meth:`Engine.generate_tokens`), pieces of text
(:meth:`Engine.stream`), a whole text (:meth:`Engine.generate`). Knows no HTTP and no terminal. One
thread uses an engine; :meth:`Engine.cancel` alone may be called from another
(:mod:`edge_runtime.engine.driver` runs one in a thread of its own).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Ordered
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_runtime.bundle import CHAT_TEMPLATE_NAME, TOKENIZER_NAME, Bundle, Manifest
from edge_runtime.engine.kv_cache import CacheGeometry, KVCache
from edge_runtime.engine.memory import process_memory
from edge_runtime.engine.model_runner import (
    ModelRunner,
    OrtModelRunner,
    RunTerminatedError,
    StepInput,
)
from edge_runtime.engine.request import (
    ChosenLogprob,
    Completion,
    Delta,
    FinishReason,
    TokenDelta,
    Usage,
)
from edge_runtime.engine.scheduler import Scheduler, StepPlan
from edge_runtime.engine.sequence import Phase, Sequence
from edge_runtime.engine.text_stream import TextStream
from edge_runtime.errors import (
    ChatTemplateError,
    EdgeRuntimeError,
    EmptyPromptError,
    InvalidParameterError,
    PromptTooLongError,
    RunError,
)
from edge_runtime.file_hash import sha256_of_file
from edge_runtime.generation.params import SamplingParams, sampling_params
from edge_runtime.generation.sampler import Sampler
from edge_runtime.providers.memory_advice import MappedFiles, trim_heap
from edge_runtime.providers.session import SessionOptions
from edge_runtime.providers.threads import plan_threads
from edge_runtime.text.chat_template import ChatTemplate, no_chat_template
from edge_runtime.text.tokenizer import BundleTokenizer, Tokenizer

# Models advertise up to a million tokens. The cache is committed as it is used, but what may be
# used should be a number that the user chose or that suits a small device.
DEFAULT_CONTEXT_LENGTH = 8192

# Each token maps some 64 KiB of the embedding; dropping them takes under a millisecond.
_DROP_EVERY_TOKENS = 32

Message = Mapping[str, Any]
Prompt = str | Ordered[Message]
Emit = Callable[[Delta | EdgeRuntimeError], None]


@dataclass(frozen=True)
class EngineOptions:
    """How to run a bundle.

    Args:
        context_length: tokens that a sequence may hold; None is the model's own, at most 8,192.
        chunk_size: most prompt tokens in one step. From about 64 a chunk runs at full speed;
            smaller ones take less memory and are cancelled sooner.
        threads: None chooses by affinity, quota and core speeds.
        slots: sequences that run at the same time.
    """

    context_length: int | None = None
    chunk_size: int = 64
    threads: int | None = None
    slots: int = 1

    def __post_init__(self) -> None:
        for name in ("context_length", "chunk_size", "threads", "slots"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidParameterError(f"{name} is {value}", hint="use 1 or more")


@dataclass(frozen=True)
class MemoryReport:
    """Bytes of this process, and of its cache; None where the system does not tell."""

    resident_bytes: int | None
    anonymous_bytes: int | None
    cache_bytes: int
    cache_tokens: int


class Engine:
    """Runs one model.

    Most callers use :meth:`load`. The constructor takes the parts, so that any of them can be a
    double.

    Args:
        manifest: the bundle's promises.
        runner: evaluates tokens.
        tokenizer: text to tokens and back.
        chat_template: renders conversations; None where the model has no template.
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
        chat_template: ChatTemplate | None,
        context_length: int,
        options: EngineOptions,
        cache: KVCache | None = None,
        mapped_weights: MappedFiles | None = None,
    ) -> None:
        self.manifest = manifest
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.context_length = context_length
        self._options = options
        self._runner = runner
        self._cache = cache
        self._mapped_weights = mapped_weights
        self._tokens_since_drop = 0
        self._scheduler = Scheduler(slots=options.slots, chunk_size=options.chunk_size)
        self._generations: dict[int, _Generation] = {}
        self._stepping: tuple[Sequence, ...] = ()
        self._end_tokens = frozenset(manifest.tokenizer.end_token_ids)

    @classmethod
    def load(
        cls,
        bundle: Path | str,
        options: EngineOptions | None = None,
        *,
        hash_file: Callable[[Path], str] = sha256_of_file,
    ) -> Engine:
        """Open a bundle directory and make it ready to run.

        Args:
            bundle: the directory.
            options: None takes the defaults.
            hash_file: as :meth:`edge_runtime.bundle.Bundle.open`.

        Raises:
            BundleError: the bundle cannot be trusted or read.
            ProviderError: no onnxruntime, or it does not open the graph.
            InvalidParameterError: a context longer than the model's.
        """
        options = options or EngineOptions()
        opened = Bundle.open(Path(bundle), hash_file=hash_file)
        manifest = opened.manifest
        context = _context_length(manifest, options.context_length)
        session_options = SessionOptions(plan_threads(options.threads))
        cache = KVCache(
            CacheGeometry.of(manifest.dimensions, slots=options.slots, capacity=context)
        )

        graph = manifest.graphs[0]
        mapped = MappedFiles([opened.file(name) for name in graph.weights])

        def open_runner() -> OrtModelRunner:
            with mapped.opening():
                return OrtModelRunner(
                    opened.file(graph.file),
                    cache,
                    vocabulary_size=manifest.dimensions.vocabulary_size,
                    options=session_options,
                )

        # onnxruntime leaves the interpreter free while it opens the graph: the text side loads
        # meanwhile.
        with ThreadPoolExecutor(1) as pool:
            runner = pool.submit(open_runner)
            tokenizer = BundleTokenizer.load(
                opened.file(TOKENIZER_NAME), bos_token_id=manifest.tokenizer.bos_token_id
            )
            chat_template = _chat_template(opened, tokenizer)
            runner.result()
        mapped.drop_pages()
        trim_heap()
        return cls(
            manifest,
            runner=runner.result(),
            tokenizer=tokenizer,
            chat_template=chat_template,
            context_length=context,
            options=options,
            cache=cache,
            mapped_weights=mapped,
        )

    def close(self) -> None:
        """Let the session and the cache go."""
        if self._mapped_weights is not None:
            with self._mapped_weights.closing():
                self._runner.close()
        else:
            self._runner.close()
        if self._cache is not None:
            self._cache.close()
            self._cache = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # What a caller prepares

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a raw prompt, with the model's begin token where it wants one."""
        return self.tokenizer.encode(text, add_bos=self.manifest.tokenizer.add_bos)

    def encode_chat(
        self,
        messages: Ordered[Message],
        *,
        tools: Ordered[Mapping[str, Any]] | None = None,
        template_arguments: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a conversation through the model's template, ready for an answer.

        Args:
            messages: with ``role`` and ``content``, oldest first.
            tools: what the model may call, as the template's family describes tools.
            template_arguments: further variables of the template, such as ``enable_thinking``.

        Raises:
            ChatTemplateError: the model has no template, or it refuses the conversation.
        """
        if self.chat_template is None:
            raise no_chat_template(self.manifest.name)
        text = self.chat_template.render(messages, tools=tools, extra=template_arguments)
        # Most templates write the begin token themselves; the tokenizer adds no second one.
        return self.tokenizer.encode(text, add_bos=self.manifest.tokenizer.add_bos)

    def default_params(self, **overrides: Any) -> SamplingParams:
        """Sampling parameters: what is given, then the model's own wishes, then plain defaults.

        Raises:
            InvalidParameterError: a value out of its range.
        """
        return sampling_params(self.manifest.generation, **overrides)

    # The three rungs

    def generate_tokens(
        self, prompt_ids: Ordered[int], params: SamplingParams | None = None
    ) -> Iterator[TokenDelta]:
        """Token ids in, token ids out.

        Raises:
            EmptyPromptError, PromptTooLongError, InvalidParameterError: before the first token.
            RunError: a step failed.
        """
        for delta in self._consume(prompt_ids, params):
            for i, token in enumerate(delta.token_ids):
                yield TokenDelta(
                    token,
                    delta.logprobs[i] if delta.logprobs else None,
                    delta.finish_reason if i == len(delta.token_ids) - 1 else None,
                )

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Delta]:
        """Text or a conversation in, pieces of the answer out.

        Args:
            prompt: a string is taken as it is; messages go through the chat template.
            params: None takes :meth:`default_params`.

        Raises:
            As :meth:`generate_tokens`; ChatTemplateError or TokenizerError for the prompt.
        """
        ids = self.encode_prompt(prompt) if isinstance(prompt, str) else self.encode_chat(prompt)
        yield from self._consume(ids, params)

    def generate(self, prompt: Prompt, params: SamplingParams | None = None) -> Completion:
        """Text or a conversation in, the whole answer out. Raises as :meth:`stream`."""
        deltas = list(self.stream(prompt, params))
        last = deltas[-1]
        assert last.finish_reason is not None and last.usage is not None
        return Completion(
            text="".join(d.text for d in deltas),
            token_ids=tuple(t for d in deltas for t in d.token_ids),
            logprobs=tuple(p for d in deltas for p in d.logprobs),
            finish_reason=last.finish_reason,
            usage=last.usage,
        )

    def score(self, token_ids: Ordered[int]) -> Iterator[NDArray[np.float32]]:
        """Logits at every position of a text, for evaluation.

        Args:
            token_ids: the text, at most the context length.

        Yields:
            float32 (chunk, V), in order; row i predicts the token after position i.

        Raises:
            EmptyPromptError, PromptTooLongError: as for a prompt.
        """
        self._check_prompt(token_ids)
        assert not self._scheduler.unfinished, "scoring uses the first slot"
        self.reset()
        size = self._options.chunk_size
        for start in range(0, len(token_ids), size):
            chunk = np.array([token_ids[start : start + size]], np.int64)
            count = chunk.shape[1]
            step = StepInput(
                first_slot=0,
                token_ids=chunk,
                held=np.array([start], np.int32),
                lengths=np.array([count], np.int32),
                logits_indices=np.arange(count, dtype=np.int64)[None],
            )
            yield self._runner.run(step)[0].copy()

    # What a driver uses

    def submit(
        self, prompt_ids: Ordered[int], params: SamplingParams | None, *, emit: Emit
    ) -> Sequence:
        """Queue a request; :meth:`step` works on it and calls ``emit`` for each delta.

        ``emit`` gets an error instead when the request fails, and nothing after that or after a
        delta with a finish reason.

        Raises:
            EmptyPromptError, PromptTooLongError, InvalidParameterError: nothing was queued.
        """
        started_s = time.perf_counter()
        params = params or self.default_params()
        self._check_prompt(prompt_ids)
        sequence = Sequence(tuple(prompt_ids), params)
        vocabulary = self.manifest.dimensions.vocabulary_size
        self._generations[sequence.id] = _Generation(
            emit=emit,
            sampler=Sampler(params, prompt_token_ids=prompt_ids, vocabulary_size=vocabulary),
            text=TextStream(self.tokenizer, params),
            started_s=started_s,
        )
        self._scheduler.add(sequence)
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        """End a request at the next step; one that has the step to itself is stopped inside it.

        May be called from any thread, and more than once.
        """
        sequence.cancel_requested = True
        if self._stepping == (sequence,):
            self._runner.terminate()

    @property
    def has_work(self) -> bool:
        """Whether a request runs or waits."""
        return bool(self._scheduler.unfinished)

    def step(self) -> None:
        """Do one step: a chunk of a prompt, or one token of each running sequence."""
        for sequence in self._scheduler.unfinished:
            if sequence.cancel_requested:
                self._finish(sequence, FinishReason.CANCELLED)
        plan = self._scheduler.schedule()
        if plan is None:
            return
        for sequence in plan.admitted:
            self._give_back(sequence.slot, keep_tokens=sequence.held_tokens)
        before_s = time.perf_counter()
        self._stepping = plan.sequences
        try:
            logits = self._runner.run(self._input(plan))
        except RunTerminatedError:
            return  # whoever was cancelled is dropped by the next step; others try again
        except RunError as exc:
            self._fail(plan.sequences, exc)
            return
        finally:
            self._stepping = ()
        self._advance(plan, logits, time.perf_counter() - before_s)
        self._let_weights_go(sum(plan.token_counts))

    def reset(self) -> None:
        """Forget what finished sequences left in the cache, and give its pages back."""
        for slot in self._scheduler.forget_warm_tokens():
            self._give_back(slot, keep_tokens=0)

    def memory(self) -> MemoryReport:
        """What the process and its cache hold now."""
        process = process_memory()
        tokens = self._scheduler.held_tokens
        per_token = self._cache.geometry.token_bytes if self._cache is not None else 0
        return MemoryReport(
            process.resident_bytes, process.anonymous_bytes, tokens * per_token, tokens
        )

    # One step

    def _input(self, plan: StepPlan) -> StepInput:
        rows = len(plan.sequences)
        first = plan.sequences[0].slot
        assert first is not None
        slots = [s.slot for s in plan.sequences]
        assert slots == list(range(first, first + rows)), "a step uses neighbouring slots"
        width = max(plan.token_counts)
        ids = np.zeros((rows, width), np.int64)
        for row, (sequence, count) in enumerate(
            zip(plan.sequences, plan.token_counts, strict=True)
        ):
            held = sequence.held_tokens
            ids[row, :count] = sequence.tokens[held : held + count]
        lengths = np.array(plan.token_counts, np.int32)
        wanted = (lengths - 1)[:, None] if plan.wants_logits else np.zeros((rows, 0), np.int64)
        return StepInput(
            first_slot=first,
            token_ids=ids,
            held=np.array([s.held_tokens for s in plan.sequences], np.int32),
            lengths=lengths,
            logits_indices=wanted.astype(np.int64),
        )

    def _advance(self, plan: StepPlan, logits: NDArray[np.float32], elapsed_s: float) -> None:
        for row, (sequence, count) in enumerate(
            zip(plan.sequences, plan.token_counts, strict=True)
        ):
            sequence.held_tokens += count
            generation = self._generations[sequence.id]
            if plan.is_prefill:
                generation.prefill_s += elapsed_s
            else:
                generation.decode_s += elapsed_s
            if not plan.wants_logits:
                continue
            sequence.phase = Phase.DECODE
            try:
                self._take_token(sequence, generation, logits[row, 0])
            except EdgeRuntimeError as exc:
                self._fail((sequence,), exc)

    def _take_token(
        self, sequence: Sequence, generation: _Generation, logits: NDArray[np.float32]
    ) -> None:
        sampled = generation.sampler.sample(logits)
        if not sequence.completion_tokens:
            generation.ttft_s = time.perf_counter() - generation.started_s
        sequence.tokens.append(sampled.token_id)
        logprobs = () if sampled.logprob is None else (sampled.logprob,)
        params = sequence.params
        ends = sampled.token_id in self._end_tokens and not params.ignore_eos
        if ends or sampled.token_id in params.stop_token_ids:
            self._finish(sequence, FinishReason.STOP, sampled.token_id, logprobs)
            return
        text = generation.text.add(sampled.token_id)
        full = len(sequence.tokens) >= self.context_length
        if generation.text.stopped:
            self._finish(sequence, FinishReason.STOP, sampled.token_id, logprobs, text)
        elif full or sequence.completion_tokens == params.max_tokens:
            self._finish(sequence, FinishReason.LENGTH, sampled.token_id, logprobs, text)
        else:
            generation.emit(Delta(text, (sampled.token_id,), logprobs))

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        token_id: int | None = None,
        logprobs: tuple[ChosenLogprob, ...] = (),
        text: str = "",
    ) -> None:
        generation = self._generations.pop(sequence.id)
        self._scheduler.finish(sequence, reason)
        if not generation.text.stopped:
            text += generation.text.flush()
        token_ids = () if token_id is None else (token_id,)
        usage = Usage(
            prompt_tokens=len(sequence.prompt),
            cached_tokens=sequence.cached_tokens,
            completion_tokens=sequence.completion_tokens,
            ttft_s=generation.ttft_s,
            prefill_s=generation.prefill_s,
            decode_s=generation.decode_s,
        )
        generation.emit(Delta(text, token_ids, logprobs, reason, usage))

    def _fail(self, sequences: Ordered[Sequence], error: EdgeRuntimeError) -> None:
        for sequence in sequences:
            self._scheduler.finish(sequence, FinishReason.ERROR)
            self._generations.pop(sequence.id).emit(error)

    def _consume(self, prompt_ids: Ordered[int], params: SamplingParams | None) -> Iterator[Delta]:
        """Run steps until this request is finished; leaving early cancels it."""
        deltas: deque[Delta | EdgeRuntimeError] = deque()
        sequence = self.submit(prompt_ids, params, emit=deltas.append)
        try:
            while deltas or sequence.phase is not Phase.FINISHED:
                if not deltas:
                    self.step()
                    continue
                delta = deltas.popleft()
                if isinstance(delta, EdgeRuntimeError):
                    raise delta
                yield delta
        finally:
            if sequence.phase is not Phase.FINISHED:
                self._finish(sequence, FinishReason.CANCELLED)

    def _check_prompt(self, prompt_ids: Ordered[int]) -> None:
        if not len(prompt_ids):
            raise EmptyPromptError("the prompt is empty", hint="give some text to go on from")
        if len(prompt_ids) > self.context_length:
            raise PromptTooLongError(len(prompt_ids), self.context_length)
        vocabulary = self.manifest.dimensions.vocabulary_size
        for token in (min(prompt_ids), max(prompt_ids)):
            if not 0 <= token < vocabulary:
                raise InvalidParameterError(
                    f"token {token} is outside the model's {vocabulary} tokens"
                )

    def _let_weights_go(self, tokens: int) -> None:
        self._tokens_since_drop += tokens
        if self._mapped_weights is not None and self._tokens_since_drop >= _DROP_EVERY_TOKENS:
            self._mapped_weights.drop_pages()
            self._tokens_since_drop = 0

    def _give_back(self, slot: int | None, *, keep_tokens: int) -> None:
        if self._cache is not None and slot is not None:
            self._cache.release(slot, keep_tokens=keep_tokens)


@dataclass
class _Generation:
    """What turns a sequence's logits into deltas, and its times in seconds."""

    emit: Emit
    sampler: Sampler
    text: TextStream
    started_s: float
    ttft_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


def _context_length(manifest: Manifest, asked: int | None) -> int:
    model = manifest.dimensions.context_length
    if asked is None:
        return min(model, DEFAULT_CONTEXT_LENGTH)
    if asked > model:
        raise InvalidParameterError(
            f"a context of {asked} tokens is longer than the model's {model}",
            hint=f"use --context {model} or less",
        )
    return asked


def _chat_template(bundle: Bundle, tokenizer: Tokenizer) -> ChatTemplate | None:
    if not bundle.has(CHAT_TEMPLATE_NAME):
        return None
    special: dict[str, str] = {}
    ids = {"bos_token": bundle.manifest.tokenizer.bos_token_id}
    for end in bundle.manifest.tokenizer.end_token_ids[:1]:
        ids["eos_token"] = end
    for name, token in ids.items():
        if token is not None:
            special[name] = tokenizer.id_to_token(token)
    source = bundle.file(CHAT_TEMPLATE_NAME).read_text(encoding="utf-8")
    template = ChatTemplate(source, special_tokens=special)
    # A broken template is found by whoever renders it: text without it still runs.
    with suppress(ChatTemplateError):
        template.compile()
    return template
