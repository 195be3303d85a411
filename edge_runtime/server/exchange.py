"""One request to a model, from its body to its last byte, and whatever ends it before.

A client that leaves, a time that is up and a server that ends all stop the engine's work for this
request alone: whether it is still queued, in prefill or in decode. Knows the pool of models and
what a request is turned into; knows no field of any wire form.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from edge_runtime.api.json_fields import optional
from edge_runtime.api.json_text import json_bytes
from edge_runtime.api.openai_error import SERVER_ERROR, ErrorReply, RequestRefusedError
from edge_runtime.engine.request import Completion, Delta, FinishReason
from edge_runtime.errors import EdgeRuntimeError
from edge_runtime.generation.candidates import candidate_params, ranked, with_logprobs
from edge_runtime.generation.params import SamplingParams
from edge_runtime.guidance.constraint import TokenConstraint
from edge_runtime.server.answers import Answers, Collected
from edge_runtime.server.body import read_object
from edge_runtime.server.context import Dialect, ServerContext
from edge_runtime.server.drift import LookedAt
from edge_runtime.server.models import LoadedModel
from edge_runtime.server.outcome import Outcome, RequestRecord
from edge_runtime.server.refusals import (
    TimedOutError,
    UnavailableError,
    queue_full,
    reply_to,
    retry_after_of,
)

# What a client that reads nothing gets on top of its time, before its connection is closed.
_GRACE_S = 5.0
# Templates and tokenizers run here: a long prompt must not hold up other requests' streams.
_encoders = ThreadPoolExecutor(2, thread_name_prefix="encode")


class Writer(Protocol):
    """How deltas go on the wire."""

    content_type: str
    ping: bytes

    def piece(self, index: int, delta: Delta) -> bytes:
        """What a delta of answer ``index`` sends; it may be nothing."""

    def closing(self) -> bytes:
        """What comes after the last delta."""

    def error(self, reply: ErrorReply) -> bytes:
        """What ends a stream which has begun and cannot go on."""

    def whole(self, answers: Sequence[Completion]) -> dict[str, Any]:
        """The one object of answers that are not streamed."""


@dataclass(frozen=True)
class Prepared:
    """A request as the engine takes it.

    Args:
        prompt_ids: the prompt.
        params: how to sample.
        answers: how many are wanted; each has a seed of its own.
        best_of: how many are generated where that is more, to return the likeliest.
        new_constraint: what an answer must match, for each anew; None where it may be anything.
        stream: send pieces as they come.
        writer: writes them.
    """

    prompt_ids: list[int]
    params: SamplingParams
    writer: Writer
    stream: bool
    answers: int = 1
    best_of: int = 1
    new_constraint: Callable[[], TokenConstraint | None] = lambda: None

    @property
    def generated(self) -> int:
        """How many answers the engine makes."""
        return max(self.answers, self.best_of)

    @property
    def is_ranked(self) -> bool:
        """Whether some of them are left out."""
        return self.generated > self.answers


@dataclass(frozen=True)
class Settled:
    """A request that needs no generation: what to answer, and what to do afterwards."""

    body: dict[str, Any]
    unload: bool = False


Prepare = Callable[[dict[str, Any], LoadedModel, float], "Prepared | Settled"]
"""Turns a body into work for a loaded model; runs in a thread. The number is the time (monotonic)
at which the request came."""


class Exchange(Response):
    """The response to a request for generation.

    Args:
        context: the server's parts.
        request: whose body was not read yet.
        endpoint: its name in metrics.
        dialect: how its errors are written.
        prepare: turns its body into work.
    """

    def __init__(
        self,
        context: ServerContext,
        request: Request,
        *,
        endpoint: str,
        dialect: Dialect,
        prepare: Prepare,
    ) -> None:
        super().__init__()
        self._context = context
        self._request = request
        self._dialect = dialect
        self._prepare = prepare
        self._came_s = time.monotonic()
        self._started = False
        self._writer: Writer | None = None
        self._looked_at: LookedAt | None = None
        self._record = RequestRecord(endpoint=endpoint)

    @property
    def _deadline_s(self) -> float:
        return self._came_s + self._context.settings.request_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the exchange; never raises for what a request or a client does."""
        record = self._record
        try:
            body = await read_object(self._request, self._context.settings)
            record.outcome = await self._while_connected(receive, self._answer(body, send))
        except ClientDisconnect:
            record.outcome = Outcome.LEFT
        except EdgeRuntimeError as exc:
            await self._refuse(exc, send)
        except asyncio.CancelledError:
            record.outcome = Outcome.LEFT  # the server ends, and its time is up
            raise
        except OSError:
            record.outcome = Outcome.LEFT  # while something was sent
        except Exception as exc:
            # A defect that one request brings out: the others are as good as before.
            self._context.log.defect(exc)
            record.outcome = Outcome.FAILED
            with suppress(OSError):
                await self._tell(_INTERNAL, None, send)
        finally:
            record.seconds = time.monotonic() - self._came_s
            self._context.finished(record)

    async def _while_connected(self, receive: Receive, work: Any) -> Outcome:
        """Do the work until it is done, the client leaves, or far more than its time is up."""
        working = asyncio.ensure_future(work)
        watching = asyncio.ensure_future(_disconnected(receive))
        try:
            left_s = self._deadline_s + _GRACE_S - time.monotonic()
            await asyncio.wait(
                {working, watching}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )
            if working.done():
                outcome: Outcome = working.result()
                return outcome
            return Outcome.LEFT if watching.done() else Outcome.TIMED_OUT
        finally:
            watching.cancel()
            working.cancel()
            # Not before it has let go of its slot and of the model.
            await asyncio.gather(working, watching, return_exceptions=True)

    async def _answer(self, body: dict[str, Any], send: Send) -> Outcome:
        pool = self._context.pool
        served = pool.find(optional(body, "model", str))
        self._record.model = served.name
        unload = False
        async with pool.lease(served) as model:
            prepared = await asyncio.get_running_loop().run_in_executor(
                _encoders, self._prepare, body, model, self._came_s
            )
            if isinstance(prepared, Settled):
                unload = prepared.unload
                await self._send_json(200, prepared.body, send)
            else:
                self._check(prepared)
                await self._generate(model, prepared, send)
        if unload:
            await pool.unload(served)
        return Outcome.ANSWERED

    def _check(self, prepared: Prepared) -> None:
        limit = self._context.settings.max_answers
        if prepared.generated > limit:
            name = "best_of" if prepared.is_ranked else "n"
            raise RequestRefusedError(
                f"{name} is {prepared.generated}; this server gives at most {limit} answers",
                param=name,
                code="invalid_value",
            )

    async def _generate(self, model: LoadedModel, prepared: Prepared, send: Send) -> None:
        settings = self._context.settings
        room = model.slots + settings.max_queue - model.answers
        if room < min(prepared.generated, model.slots + settings.max_queue):
            raise queue_full(model.answers, self._context.retry_after_s(model))
        self._writer = prepared.writer
        model.answers += prepared.generated
        watch = self._context.drift.of(model.served.name)
        params = _params(prepared)
        if len(params) == 1 and params[0].logprobs is None and watch.looks():
            self._looked_at = LookedAt()
            params = [LookedAt.params(params[0])]
        try:
            async with Answers(
                model.driver, prepared.prompt_ids, params, prepared.new_constraint
            ) as answers:
                with self._context.running(answers):
                    deliver = self._stream if prepared.stream else self._whole
                    await deliver(answers, prepared, send)
        finally:
            model.answers -= prepared.generated
        signs = None if self._looked_at is None else self._looked_at.signs()
        if signs is not None:
            watch.add(signs)

    async def _stream(self, answers: Answers, prepared: Prepared, send: Send) -> None:
        writer, interval_s = prepared.writer, self._context.settings.ping_interval_s
        while answers.unfinished:
            pieces = await answers.next(min(interval_s, self._left_s()))
            if pieces:
                data = b"".join(writer.piece(i, self._noted(delta)) for i, delta in pieces)
            elif self._left_s() <= 0:
                raise TimedOutError(self._context.settings.request_timeout_s)
            else:
                data = writer.ping
            if data or not self._started:
                await self._send_head(200, writer.content_type, send)
                await _send_part(send, data)
        await _send_part(send, writer.closing(), more=False)

    async def _whole(self, answers: Answers, prepared: Prepared, send: Send) -> None:
        collected = Collected(prepared.generated)
        while answers.unfinished:
            pieces = await answers.next(self._left_s())
            if not pieces and self._left_s() <= 0:
                raise TimedOutError(self._context.settings.request_timeout_s)
            for index, delta in pieces:
                collected.add((index, self._noted(delta)))
        completions = collected.completions()
        if prepared.is_ranked:
            asked = prepared.params.logprobs is not None
            best = ranked(completions, keep_logprobs=asked)[: prepared.answers]
            completions = [candidate.completion for candidate in best]
        await self._send_json(200, prepared.writer.whole(completions), send)

    def _left_s(self) -> float:
        return self._deadline_s - time.monotonic()

    def _noted(self, delta: Delta) -> Delta:
        """The delta, once it is known to be part of an answer and not the end of a cancelled one.

        Raises:
            UnavailableError: the server ends.
        """
        if delta.finish_reason is FinishReason.CANCELLED:
            raise UnavailableError("the server is shutting down", code="closing", retry_after_s=5)
        self._record.note(delta)
        return delta if self._looked_at is None else self._looked_at.strip(delta)

    # What goes out

    async def _refuse(self, exc: EdgeRuntimeError, send: Send) -> None:
        reply = reply_to(exc)
        self._record.outcome = _outcome_of(reply.status_code)
        if reply.status_code == SERVER_ERROR:
            self._context.log.failure(exc)
        with suppress(OSError):
            await self._tell(reply, retry_after_of(exc), send)

    async def _tell(self, reply: ErrorReply, retry_after_s: int | None, send: Send) -> None:
        if self._started:
            data = b"" if self._writer is None else self._writer.error(reply)
            await _send_part(send, data, more=False)
            return
        headers = {} if retry_after_s is None else {"retry-after": str(retry_after_s)}
        await self._send_json(reply.status_code, self._dialect(reply), send, headers)

    async def _send_json(
        self, status: int, body: dict[str, Any], send: Send, headers: dict[str, str] | None = None
    ) -> None:
        data = json_bytes(body)
        more = {"content-length": str(len(data)), **(headers or {})}
        await self._send_head(status, "application/json", send, more)
        await _send_part(send, data, more=False)

    async def _send_head(
        self, status: int, content_type: str, send: Send, headers: dict[str, str] | None = None
    ) -> None:
        if self._started:
            return
        self._started = True
        self._record.status = status
        named = {"content-type": content_type, "cache-control": "no-store", **(headers or {})}
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in named.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})


async def _send_part(send: Send, data: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


async def _disconnected(receive: Receive) -> None:
    """Return when the client has left; its body was read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _params(prepared: Prepared) -> list[SamplingParams]:
    """One for each answer; with a seed they differ by it, and without by chance."""
    params = with_logprobs(prepared.params) if prepared.is_ranked else prepared.params
    return candidate_params(params, prepared.generated)


def _outcome_of(status: int) -> Outcome:
    if status == TimedOutError.status_code:
        return Outcome.TIMED_OUT
    if status == UnavailableError.status_code:
        return Outcome.UNAVAILABLE
    return Outcome.REFUSED if status < SERVER_ERROR else Outcome.FAILED


_INTERNAL = ErrorReply(SERVER_ERROR, "internal error", "server_error", None, "internal_error")
