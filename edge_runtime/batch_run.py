"""Answers the lines of a batch with an engine, several at a time.

A few threads each take a line, hand its request to the engine's driver and wait for the answer; the
caller's thread takes the results as they come. A line that cannot be answered has an error as its
answer, and the others go on. Stopping cancels what runs; what was cancelled has no answer.

Knows no file and no terminal.
"""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from edge_runtime.api.answer_form import form_field, naming
from edge_runtime.api.json_fields import required
from edge_runtime.api.openai_error import SERVER_ERROR, RequestRefusedError, error_reply
from edge_runtime.api.openai_request import (
    ChatRequest,
    CompletionRequest,
    read_chat_request,
    read_completion_request,
)
from edge_runtime.api.openai_response import ReplyHead, chat_completion, text_completion
from edge_runtime.batch_file import BatchLine
from edge_runtime.engine.request import Completion, Delta, FinishReason, Usage
from edge_runtime.errors import EdgeRuntimeError
from edge_runtime.generation.candidates import candidate_params, ranked, with_logprobs
from edge_runtime.generation.params import SamplingParams
from edge_runtime.guidance.plan import AnswerPlan, plan_chat, plan_text

if TYPE_CHECKING:
    from edge_runtime.engine.driver import EngineDriver, RequestHandle
    from edge_runtime.engine.engine import Engine

TICK_S = 0.2
MAX_ANSWERS = 20
"""Most answers that are generated for a line."""
CHAT_URL, COMPLETION_URL = "/v1/chat/completions", "/v1/completions"


@dataclass(frozen=True)
class Answer:
    """A line's output line; ``usage`` where tokens were generated for it."""

    line: BatchLine
    output: Mapping[str, Any]
    usage: Usage | None


@dataclass(frozen=True)
class _Prepared:
    """A request as the engine takes it, and how its answers are written.

    ``params`` are one for each answer that is generated; the ``answers`` likeliest are kept.
    """

    plan: AnswerPlan
    params: list[SamplingParams]
    answers: int
    keep_logprobs: bool
    reply: Callable[[ReplyHead, Sequence[Completion]], dict[str, Any]]
    id_prefix: str

    def chosen(self, completions: list[Completion]) -> list[Completion]:
        """Those that are wanted, in the order in which they are written."""
        if len(completions) == self.answers:
            return completions
        best = ranked(completions, keep_logprobs=self.keep_logprobs)[: self.answers]
        return [candidate.completion for candidate in best]


class _Ended:
    """What a worker passes on last."""


class BatchRun:
    """One pass over the lines of a batch.

    Args:
        engine: encodes prompts and names the model.
        driver: runs the engine.
        lines: what to answer, taken one by one as there is room.
        parallel: requests that the driver has at the same time.
    """

    def __init__(
        self, engine: Engine, driver: EngineDriver, lines: Iterator[BatchLine], *, parallel: int
    ) -> None:
        self._engine = engine
        self._driver = driver
        self._lines = lines
        self._lock = threading.Lock()
        self._open: set[RequestHandle] = set()
        self._stopping = False
        # Bounded: lines that are quickly refused must not pile up before they are written.
        self._results: queue.Queue[Answer | BaseException | _Ended] = queue.Queue(2 * parallel)
        self._generated = [0] * parallel

    @property
    def generated_tokens(self) -> int:
        """Tokens generated so far, those of unfinished answers too."""
        return sum(self._generated)

    def stop(self) -> None:
        """Cancel what runs and take no further line; answers that are finished still come."""
        with self._lock:
            self._stopping = True
            for handle in self._open:
                handle.cancel()

    def answers(self) -> Iterator[Answer | None]:
        """The answers as they come; None now and then while there is none. Run it once.

        Raises:
            RunError: the engine's thread has ended.
            UsageError: the input cannot be read any more.
        """
        workers = [
            threading.Thread(target=self._work, args=(i,), name=f"batch-{i}", daemon=True)
            for i in range(len(self._generated))
        ]
        for worker in workers:
            worker.start()
        running = len(workers)
        try:
            while running:
                try:
                    result = self._results.get(timeout=TICK_S)
                except queue.Empty:
                    yield None
                    continue
                if isinstance(result, Answer):
                    yield result
                elif isinstance(result, BaseException):
                    raise result
                else:
                    running -= 1
        finally:
            self.stop()
            while running:
                running -= isinstance(self._results.get(), _Ended)
            for worker in workers:
                worker.join()

    def _work(self, worker: int) -> None:
        try:
            while (line := self._next_line()) is not None:
                answer = self._answer(line, worker)
                if answer is not None:
                    self._results.put(answer)
        except BaseException as exc:
            self._results.put(exc)
        finally:
            self._results.put(_Ended())

    def _next_line(self) -> BatchLine | None:
        with self._lock:
            return None if self._stopping else next(self._lines, None)

    def _answer(self, line: BatchLine, worker: int) -> Answer | None:
        """The answer to a line, or None if it was cancelled."""
        try:
            prepared = _prepare(self._engine, line)
        except EdgeRuntimeError as exc:
            return _error_answer(line, exc)
        except Exception as exc:
            # A defect that one request brings out: the others are as good as before.
            return _internal_error_answer(line, exc)
        try:
            handles = self._submit(prepared)
        except EdgeRuntimeError as exc:
            return _error_answer(line, exc)
        try:
            completions = [self._collect(handle, worker) for handle in handles]
        except EdgeRuntimeError as exc:
            return _error_answer(line, exc)
        finally:
            with self._lock:
                self._open.difference_update(handles)
            for handle in handles:
                handle.cancel()
        if any(c.finish_reason is FinishReason.CANCELLED for c in completions):
            return None
        head = ReplyHead(
            id=f"{prepared.id_prefix}-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=self._engine.manifest.name,
        )
        body = prepared.reply(head, prepared.chosen(completions))
        return Answer(line, _output(line, _response(200, body), None), _total(completions))

    def _submit(self, prepared: _Prepared) -> list[RequestHandle]:
        """One request for each answer; they share the reading of the prompt.

        Raises:
            GrammarError: a grammar that was kept before cannot be compiled again.
        """
        group = object() if len(prepared.params) > 1 else None
        plan = prepared.plan
        constraints = [plan.new_constraint() for _ in prepared.params]
        handles = [
            self._driver.submit(plan.prompt_ids, params, group=group, constraint=constraint)
            for params, constraint in zip(prepared.params, constraints, strict=True)
        ]
        with self._lock:
            self._open.update(handles)
            if self._stopping:
                for handle in handles:
                    handle.cancel()
        return handles

    def _collect(self, handle: RequestHandle, worker: int) -> Completion:
        deltas: list[Delta] = []
        for delta in handle:
            deltas.append(delta)
            self._generated[worker] += len(delta.token_ids)
        return Completion.of(deltas)


def _total(completions: Sequence[Completion]) -> Usage:
    """What all answers took: the prompt is counted once."""
    first = completions[0].usage
    return replace(first, completion_tokens=sum(c.usage.completion_tokens for c in completions))


def _prepare(engine: Engine, line: BatchLine) -> _Prepared:
    """Check a line and encode its prompt.

    Raises:
        EdgeRuntimeError: it cannot be answered.
    """
    if line.problem is not None:
        raise line.problem
    method = required(line.content, "method", str)
    if method != "POST":
        raise RequestRefusedError(
            f"method is {method!r}; it must be 'POST'", param="method", code="invalid_value"
        )
    url = required(line.content, "url", str)
    prepare = _ENDPOINTS.get(url)
    if prepare is None:
        raise RequestRefusedError(
            f"url is {url!r}; known: {', '.join(_ENDPOINTS)}", param="url", code="invalid_value"
        )
    return prepare(engine, required(line.content, "body", dict))


def _prepare_chat(engine: Engine, body: Mapping[str, Any]) -> _Prepared:
    request = read_chat_request(body, engine.manifest.generation)
    _refuse_what_a_file_cannot_hold(request)
    with naming(form_field(body)):
        plan = plan_chat(
            engine,
            request.messages,
            request.params,
            request.form,
            template_arguments=request.template_arguments,
        )

    def reply(head: ReplyHead, answers: Sequence[Completion]) -> dict[str, Any]:
        return chat_completion(head, answers, engine.tokenizer, plan.new_parser)

    return _prepared(plan, request, reply, "chatcmpl")


def _prepare_completion(engine: Engine, body: Mapping[str, Any]) -> _Prepared:
    request = read_completion_request(body, engine.manifest.generation)
    _refuse_what_a_file_cannot_hold(request)
    prompt = request.prompt
    ids = engine.encode_prompt(prompt) if isinstance(prompt, str) else list(prompt)
    with naming(form_field(body)):
        plan = plan_text(engine, ids, request.params, request.grammar)

    def reply(head: ReplyHead, answers: Sequence[Completion]) -> dict[str, Any]:
        return text_completion(head, answers, engine.tokenizer)

    return _prepared(plan, request, reply, "cmpl")


def _prepared(
    plan: AnswerPlan,
    request: ChatRequest | CompletionRequest,
    reply: Callable[[ReplyHead, Sequence[Completion]], dict[str, Any]],
    id_prefix: str,
) -> _Prepared:
    params = plan.params
    if request.best_of > request.answers:
        params = with_logprobs(params)
    return _Prepared(
        plan,
        candidate_params(params, request.best_of),
        request.answers,
        request.params.logprobs is not None,
        reply,
        id_prefix,
    )


_ENDPOINTS = {CHAT_URL: _prepare_chat, COMPLETION_URL: _prepare_completion}


def _refuse_what_a_file_cannot_hold(request: ChatRequest | CompletionRequest) -> None:
    for name, count in (("n", request.answers), ("best_of", request.best_of)):
        if count > MAX_ANSWERS:
            raise RequestRefusedError(
                f"{name} is {count}: a line gets at most {MAX_ANSWERS} answers",
                param=name,
                code="unsupported_value",
            )
    if request.stream:
        raise RequestRefusedError(
            "stream is True: an answer in a file comes whole",
            param="stream",
            code="unsupported_value",
        )


def _error_answer(line: BatchLine, exc: EdgeRuntimeError) -> Answer:
    reply = error_reply(exc)
    if reply.status_code < SERVER_ERROR:
        return Answer(line, _output(line, _response(reply.status_code, reply.body), None), None)
    error = {"code": reply.code, "message": reply.message}
    return Answer(line, _output(line, None, error), None)


def _internal_error_answer(line: BatchLine, exc: Exception) -> Answer:
    error = {"code": "internal_error", "message": f"{type(exc).__name__}: {exc}"}
    return Answer(line, _output(line, None, error), None)


def _response(status_code: int, body: Mapping[str, Any]) -> dict[str, Any]:
    return {"status_code": status_code, "request_id": f"req_{uuid.uuid4().hex}", "body": body}


def _output(
    line: BatchLine, response: Mapping[str, Any] | None, error: Mapping[str, Any] | None
) -> dict[str, Any]:
    return {"id": line.id, "custom_id": line.custom_id, "response": response, "error": error}
