"""The engine as callers use it: text or conversations in, three rungs of answers out.

Tokens (:meth:`Engine.generate_tokens`), pieces of text (:meth:`Engine.stream`), a whole text
(:meth:`Engine.generate`). Knows no HTTP and no terminal. One thread uses an engine;
:mod:`edge_runtime.engine.driver` runs one in a thread of its own for others.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from collections.abc import Sequence as Ordered
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from edge_runtime.bundle import Manifest
from edge_runtime.engine.beam_decoding import BeamSlots, most_tokens
from edge_runtime.engine.core import EngineCore
from edge_runtime.engine.kv_cache import KVCache
from edge_runtime.engine.load import load_parts
from edge_runtime.engine.memory_plan import MemoryPlan
from edge_runtime.engine.model_runner import ModelRunner, RunTerminatedError
from edge_runtime.engine.options import EngineOptions
from edge_runtime.engine.request import Completion, Delta, FinishReason, TokenDelta, Usage
from edge_runtime.engine.sequence import Phase
from edge_runtime.engine.several import generate_together
from edge_runtime.engine.step_input import scoring_input
from edge_runtime.errors import EdgeRuntimeError, InvalidParameterError, MemoryCapError, UsageError
from edge_runtime.file_hash import sha256_of_file
from edge_runtime.generation.beam import BeamParams, BeamSearch, Hypothesis
from edge_runtime.generation.candidates import (
    Candidate,
    candidate_params,
    check_counts,
    ranked,
    with_logprobs,
)
from edge_runtime.generation.params import SamplingParams
from edge_runtime.guidance.constraint import TokenConstraint
from edge_runtime.guidance.grammar import Grammar
from edge_runtime.guidance.llguidance_constraint import GrammarCompiler
from edge_runtime.providers.memory_advice import MappedFiles
from edge_runtime.providers.select import ProviderReport
from edge_runtime.text.chat_template import ChatTemplate, no_chat_template
from edge_runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from edge_runtime.engine.prefix_file import PrefixHeader
    from edge_runtime.engine.saved_prefix import SavedPrefixes

__all__ = ["Engine", "EngineOptions", "Message", "Prompt"]

Message = Mapping[str, Any]
Prompt = str | Ordered[Message] | Ordered[int]

_ONE_TOKEN = SamplingParams(temperature=0.0, max_tokens=1)


class Engine(EngineCore):
    """Runs one model; most callers use :meth:`load`.

    Args:
        chat_template: renders conversations; None where the model has no template.
        memory_plan: the split of the memory cap that options and context come from; None without
            a cap.
        provider: which execution provider runs it, and why; None for a runner of one's own.
        manifest, runner, tokenizer, context_length, options, cache, mapped_weights: as
            :class:`edge_runtime.engine.core.EngineCore`.
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
        memory_plan: MemoryPlan | None = None,
        provider: ProviderReport | None = None,
    ) -> None:
        super().__init__(
            manifest,
            runner=runner,
            tokenizer=tokenizer,
            context_length=context_length,
            options=options,
            cache=cache,
            mapped_weights=mapped_weights,
        )
        self.chat_template = chat_template
        self.memory_plan = memory_plan
        self.notices: tuple[str, ...] = ()
        """What whoever loaded the engine should be told, in whole sentences."""
        self._cache = cache
        self.provider = provider

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
            TokenizerError: its tokenizer does not load.
            ProviderError: no onnxruntime, one too old for the graph, or it does not open the graph.
            InvalidParameterError: a context longer than the model's, or a memory cap on a system
                that cannot keep one.
            MemoryCapError: the model does not fit in the memory cap.
            PrefixFileError: the bundle's warm prompt is damaged, or of another model.
            RunError: the system refuses the cache's address space.
        """
        options = options or EngineOptions()
        limit = options.memory_limit
        try:
            parts = load_parts(Path(bundle), options, hash_file=hash_file)
        except MemoryCapError as exc:
            if limit is None or exc.cap != limit.bytes:
                raise
            raise MemoryCapError(exc.cap, exc.smallest_cap, source=limit.source) from exc
        plan = parts.memory_plan
        if plan is not None and limit is not None and plan.cap == limit.bytes:
            plan = replace(plan, cap_source=limit.source)
        engine = cls(
            parts.manifest,
            runner=parts.runner,
            tokenizer=parts.tokenizer,
            chat_template=parts.chat_template,
            context_length=parts.context_length,
            options=parts.options,
            cache=parts.cache,
            mapped_weights=parts.mapped_weights,
            memory_plan=plan,
            provider=parts.provider,
        )
        if parts.manifest.warm_prompt is not None:
            with ExitStack() as on_failure:
                on_failure.callback(engine.close)
                notice = engine._saved.load_of_bundle(Path(bundle) / parts.manifest.warm_prompt)
                on_failure.pop_all()
            engine.notices += () if notice is None else (notice,)
        return engine

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

    @cached_property
    def grammars(self) -> GrammarCompiler:
        """Makes constraints of grammars for this model, and keeps what it compiled."""
        return GrammarCompiler(
            self.tokenizer,
            vocabulary_size=self.manifest.dimensions.vocabulary_size,
            end_tokens=self.manifest.tokenizer.end_token_ids,
        )

    def chat_prefix(self, system: str | None) -> list[int]:
        """The token ids that every conversation with this system message begins with.

        Raises:
            ChatTemplateError: as :meth:`encode_chat`.
        """
        head = [] if system is None else [{"role": "system", "content": system}]
        # Two questions that have nothing in common: what both begin with, any does.
        one, other = (
            self.encode_chat([*head, {"role": "user", "content": text}]) for text in ("A", "2")
        )
        shared = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
        return [token for token, _ in shared]

    # Prompts in files

    def save_prefix(
        self, token_ids: Ordered[int], path: Path | str, *, system: str | None = None
    ) -> PrefixHeader:
        """Evaluate a prompt, as far as it is not held already, and save its keys and values.

        Args:
            token_ids: the prompt, such as :meth:`chat_prefix` gives.
            path: the file; a saved prompt that is there is replaced.
            system: the system message that the prompt comes from, for whoever loads it.

        Raises:
            EmptyPromptError, PromptTooLongError, InvalidParameterError: as for any prompt.
            PrefixFileError: something else is at ``path``.
            StorageError: it cannot be written.
            UsageError: a request is in progress.
            RunError: a step failed, or this engine's cache cannot be read.
        """
        ids = self._checked_prompt(token_ids)
        if self.has_work:
            raise UsageError("a prompt cannot be saved while a request is in progress")
        one_token = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
        list(self._consume(ids, one_token, None))
        return self._saved.save(ids, Path(path), system=system)

    def load_prefix(self, path: Path | str) -> PrefixHeader:
        """Read a saved prompt into a free slot: requests that begin with it start warm.

        Raises:
            PrefixFileError: it is damaged, or no such file; nothing of it is used.
            PrefixMismatchError: it belongs to another model, recipe, provider or version.
            PromptTooLongError: the context holds fewer tokens.
            UsageError: there is no room, because requests run.
            RunError: the engine is closed, or its cache cannot be written.
        """
        return self._saved.load(Path(path))

    @cached_property
    def _saved(self) -> SavedPrefixes:
        # Not before it is used: a start without a saved prompt does not wait for these rooms.
        from edge_runtime.engine.saved_prefix import SavedPrefixes, prefix_key

        provider, cache = self.provider, self._cache
        return SavedPrefixes(
            None
            if provider is None or cache is None
            else prefix_key(self.manifest, provider, cache),
            name=self.manifest.name,
            scheduler=self._scheduler,
            executor=self._executor,
            context_length=self.context_length,
            vocabulary_size=self.manifest.dimensions.vocabulary_size,
        )

    # The three rungs

    def generate_tokens(
        self,
        prompt_ids: Ordered[int],
        params: SamplingParams | None = None,
        *,
        grammar: Grammar | None = None,
    ) -> Generator[TokenDelta, None, None]:
        """Token ids in, token ids out.

        Nothing is evaluated before the first token is asked for; leaving the generator cancels the
        request. One that is kept and neither read nor closed keeps its slot.

        Args:
            prompt_ids: the prompt.
            params: None takes :meth:`default_params`.
            grammar: what the answer must match; one that max_tokens or the context cuts short ends
                with the reason ``length``.

        Raises:
            EmptyPromptError, PromptTooLongError, InvalidParameterError: at once.
            GrammarError: at once, or while iterating where a mask costs too much.
            RunError: while iterating: a step failed, or the engine is closed.
        """
        ids = self._checked_prompt(prompt_ids)
        return self._token_deltas(self._consume(ids, params, self._constraint(grammar)))

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        grammar: Grammar | None = None,
    ) -> Generator[Delta, None, None]:
        """Text, a conversation or token ids in, pieces of the answer out.

        Args:
            prompt: a string is taken as it is; messages go through the chat template; token ids
                are for a prompt of the caller's own making, say :meth:`encode_chat` with tools.
            params, grammar: as :meth:`generate_tokens`.

        Raises:
            As :meth:`generate_tokens`; ChatTemplateError or TokenizerError for the prompt.
        """
        ids = self._checked_prompt(self._prompt_ids(prompt))
        return self._consume(ids, params, self._constraint(grammar))

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        grammar: Grammar | None = None,
    ) -> Completion:
        """As :meth:`stream`, and the whole answer at its end."""
        return Completion.of(self.stream(prompt, params, grammar=grammar))

    def generate_several(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        n: int = 1,
        best_of: int | None = None,
        grammar: Grammar | None = None,
    ) -> list[Candidate]:
        """Several answers to one prompt, which is read once; the likeliest first.

        They run together as far as there are slots, and the others after them.

        Args:
            prompt: as :meth:`stream`.
            params: as :meth:`generate`. With a seed, the answers are those of it and of the seeds
                after it.
            n: answers wanted.
            best_of: answers generated, of which the ``n`` likeliest are returned; None is ``n``.
            grammar: as :meth:`generate`.

        Returns:
            Candidates by falling mean logprob.

        Raises:
            As :meth:`generate`, where one of them fails, too; InvalidParameterError for the
            numbers; QueueFullError: more are wanted than may wait.
        """
        check_counts(n, best_of)
        ids = self._checked_prompt(self._prompt_ids(prompt))
        asked = params or self.default_params()
        several = candidate_params(with_logprobs(asked), best_of or n)
        completions = generate_together(
            self, ids, [(each, self._constraint(grammar)) for each in several]
        )
        return ranked(completions, keep_logprobs=asked.logprobs is not None)[:n]

    def beam_search(
        self, prompt: Prompt, params: BeamParams | None = None, *, n: int | None = None
    ) -> list[Candidate]:
        """The likeliest answers as a whole, by beam search; the best first.

        Nothing else may be in progress. Each beam takes a slot; the prompt is read once.

        Args:
            prompt: as :meth:`stream`.
            params: how to search; None takes the defaults of :class:`BeamParams`.
            n: most answers wanted; None is as many as there are beams.

        Returns:
            Candidates by falling score: log probability over length to the power of the penalty.
            Their text ends before the end token. Fewer than asked for where fewer were found.

        Raises:
            EmptyPromptError, PromptTooLongError: as :meth:`generate`.
            InvalidParameterError: more beams than slots, or more answers than beams.
            UsageError: a request is in progress.
            RunError: a step failed, the engine is closed, or its cache cannot be copied.
        """
        params = params or BeamParams()
        wanted = params.width if n is None else n
        if not 1 <= wanted <= params.width:
            raise InvalidParameterError(f"n is {n}; a beam {params.width} wide has 1 to that many")
        ids = self._checked_prompt(self._prompt_ids(prompt))
        if self.has_work:
            raise UsageError("beams cannot be searched while a request is in progress")
        search = BeamSearch(
            params,
            end_tokens=self._end_tokens,
            max_tokens=most_tokens(
                params,
                prompt_tokens=len(ids),
                slots=self._options.slots,
                context_length=self.context_length,
                cache_tokens=self._options.cache_tokens,
            ),
        )
        read = Completion.of(self._consume(ids, _ONE_TOKEN, None)).usage
        started_s = time.perf_counter()
        slots = BeamSlots(self._scheduler, self._executor, self.metrics, slots=self._options.slots)
        found = slots.search(search, ids)[:wanted]
        usage = replace(read, decode_s=time.perf_counter() - started_s)
        return [self._candidate(each, usage) for each in found]

    def _candidate(self, found: Hypothesis, usage: Usage) -> Candidate:
        text = self.tokenizer.decode(found.tokens[:-1] if found.ended else found.tokens)
        completion = Completion(
            text=text,
            token_ids=found.tokens,
            logprobs=(),
            finish_reason=FinishReason.STOP if found.ended else FinishReason.LENGTH,
            usage=replace(usage, completion_tokens=len(found.tokens)),
        )
        return Candidate(completion, found.score)

    def score(self, token_ids: Ordered[int]) -> Iterator[NDArray[np.float32]]:
        """Logits at every position of a text, for evaluation.

        Nothing else may be asked of the engine until the iterator is exhausted.

        Args:
            token_ids: the text, at most the context length.

        Yields:
            float32 (chunk, V), in order; row i predicts the token after position i.

        Raises:
            EmptyPromptError, PromptTooLongError, InvalidParameterError: as for a prompt, at once.
            UsageError: at once: a request is in progress.
            RunError: while iterating.
        """
        ids = self._checked_prompt(token_ids)
        if self.has_work:
            raise UsageError("a text cannot be scored while a request is in progress")
        return self._scores(ids)

    def _constraint(self, grammar: Grammar | None) -> TokenConstraint | None:
        return None if grammar is None else self.grammars.constraint(grammar)

    def _consume(
        self,
        prompt_ids: Ordered[int],
        params: SamplingParams | None,
        constraint: TokenConstraint | None,
    ) -> Generator[Delta, None, None]:
        """Run steps until this request is finished; leaving early cancels it."""
        deltas: deque[Delta | EdgeRuntimeError] = deque()
        sequence = self.submit(prompt_ids, params, emit=deltas.append, constraint=constraint)
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
                self._finish(sequence, Delta("", finish_reason=FinishReason.CANCELLED))

    @staticmethod
    def _token_deltas(deltas: Generator[Delta, None, None]) -> Generator[TokenDelta, None, None]:
        with closing(deltas):
            for delta in deltas:
                for i, token in enumerate(delta.token_ids):
                    yield TokenDelta(
                        token,
                        delta.logprobs[i] if delta.logprobs else None,
                        delta.finish_reason if i == len(delta.token_ids) - 1 else None,
                    )

    def _scores(self, ids: tuple[int, ...]) -> Iterator[NDArray[np.float32]]:
        self.reset()
        size = self._options.chunk_size
        try:
            for start in range(0, len(ids), size):
                step = scoring_input(ids[start : start + size], held=start)
                try:
                    logits = self._executor.run(step)
                except RunTerminatedError:
                    logits = self._executor.run(
                        step
                    )  # a cancel that came when its own run was over
                yield logits[0].copy()
        finally:
            self.reset()

    def _prompt_ids(self, prompt: Prompt) -> Ordered[int]:
        if isinstance(prompt, str):
            return self.encode_prompt(prompt)
        if len(prompt) and isinstance(prompt[0], Mapping):
            return self.encode_chat(cast("Ordered[Message]", prompt))
        return cast("Ordered[int]", prompt)
