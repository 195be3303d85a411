"""The application: routes, errors and lifetime put together.

Knows all rooms of the server; knows no socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from edge_runtime._version import __version__
from edge_runtime.api.openai_error import ErrorReply
from edge_runtime.errors import EdgeRuntimeError
from edge_runtime.server.context import ServerContext, ollama_dialect, openai_dialect
from edge_runtime.server.documents import finished_document
from edge_runtime.server.ollama_routes import ollama_router
from edge_runtime.server.openai_routes import openai_router
from edge_runtime.server.page import page_router
from edge_runtime.server.refusals import reply_to, retry_after_of
from edge_runtime.server.replies import json_reply
from edge_runtime.server.service_routes import service_router


def make_app(
    context: ServerContext, *, on_failed_start: Callable[[BaseException], None]
) -> FastAPI:
    """The application of a server.

    Args:
        context: its parts.
        on_failed_start: told why the first model did not load; the server is of no use then.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        starting = asyncio.create_task(_start(context, on_failed_start))
        yield
        starting.cancel()
        await context.pool.close()
        await context.embedders.close()

    app = FastAPI(
        title="edge-runtime",
        version=__version__,
        description="A small language model on this device, in OpenAI's and Ollama's forms.",
        lifespan=lifespan,
        # Their pages load scripts from elsewhere; the document itself stays.
        docs_url=None,
        redoc_url=None,
    )
    for router in (
        page_router(),
        service_router(context),
        openai_router(context),
        ollama_router(context),
    ):
        app.include_router(router)
    app.add_exception_handler(EdgeRuntimeError, _tell_error)
    app.add_exception_handler(HTTPException, _tell_http_error)
    app.add_exception_handler(ClientDisconnect, _tell_nobody)
    described = app.openapi

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = finished_document(described())
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # how FastAPI has it extended
    return app


async def _start(context: ServerContext, on_failed_start: Callable[[BaseException], None]) -> None:
    try:
        await context.pool.start()
    except Exception as exc:
        on_failed_start(exc)
    else:
        context.log.say(f"ready: {context.pool.served[0].name}")


async def _tell_error(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, EdgeRuntimeError)
    seconds = retry_after_of(exc)
    headers = {} if seconds is None else {"retry-after": str(seconds)}
    return _reply(request, reply_to(exc), headers)


async def _tell_http_error(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    said = f"{request.method} {request.url.path}"[:200]
    message = f"there is no {said}" if exc.status_code == 404 else f"{said}: {exc.detail}"
    code = "not_found" if exc.status_code == 404 else "method_not_allowed"
    reply = ErrorReply(exc.status_code, message, "invalid_request_error", None, code)
    return _reply(request, reply, dict(exc.headers or {}))


async def _tell_nobody(request: Request, exc: Exception) -> Response:
    return Response(status_code=400)


def _reply(request: Request, reply: ErrorReply, headers: dict[str, str]) -> Response:
    dialect = ollama_dialect if request.url.path.startswith("/api/") else openai_dialect
    return json_reply(dialect(reply), reply.status_code, headers)
