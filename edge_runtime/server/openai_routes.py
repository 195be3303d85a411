"""OpenAI's endpoints.

A request's fields are read in :mod:`edge_runtime.api`; here they meet a model. Knows routes and how
a body becomes work; knows no socket and no queue.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from edge_runtime.api.answer_form import form_field, naming
from edge_runtime.api.embedding_request import (
    openai_embeddings,
    read_openai_embedding_request,
)
from edge_runtime.api.json_fields import required
from edge_runtime.api.openai_request import read_chat_request, read_completion_request
from edge_runtime.api.openai_response import ReplyHead
from edge_runtime.api.openai_stream import ChatWriter, CompletionWriter
from edge_runtime.guidance.plan import plan_chat, plan_text
from edge_runtime.server.body import read_object
from edge_runtime.server.context import ServerContext, openai_dialect
from edge_runtime.server.documents import operation
from edge_runtime.server.exchange import Exchange, Prepared
from edge_runtime.server.models import LoadedModel, ServedModel
from edge_runtime.server.replies import json_reply

_OWNER = "edge-runtime"


def openai_router(context: ServerContext) -> APIRouter:
    """The routes under ``/v1``."""
    router = APIRouter()

    @router.post("/v1/chat/completions", **operation("chat_completions"))
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation."""
        return Exchange(
            context, request, endpoint="chat", dialect=openai_dialect, prepare=prepare_chat
        )

    @router.post("/v1/completions", **operation("completions"))
    async def completions(request: Request) -> Response:
        """Continue a text."""
        return Exchange(
            context,
            request,
            endpoint="completions",
            dialect=openai_dialect,
            prepare=prepare_completion,
        )

    @router.post("/v1/embeddings", **operation("embeddings"))
    async def embeddings(request: Request) -> Response:
        """Embed texts."""
        body = await read_object(request, context.settings)
        served = context.find_embedder(required(body, "model", str))
        # Asking for the width takes a turn of its own, so only those who name one wait for it.
        named = body.get("dimensions") is not None
        width = await context.embedders.width(served) if named else None
        asked = read_openai_embedding_request(body, width)
        made = await context.embedders.embed(served, asked.texts, truncate=asked.truncate)
        return json_reply(openai_embeddings(made, served.name, asked))

    @router.get("/v1/models", **operation("models"))
    async def models() -> Response:
        """List the models."""
        data = [
            _model_object(context, one) for one in (*context.pool.served, *context.embedders.served)
        ]
        return json_reply({"object": "list", "data": data})

    @router.get("/v1/models/{name:path}", **operation("model"))
    async def model(name: str) -> Response:
        """Describe one model."""
        found = context.embedders.find(name) or context.pool.find(name)
        return json_reply(_model_object(context, found))

    return router


def prepare_chat(body: dict[str, Any], model: LoadedModel, came_s: float) -> Prepared:
    """A chat completion as work.

    Raises:
        EdgeRuntimeError: it cannot be read, honoured or encoded.
    """
    engine = model.engine
    request = read_chat_request(body, engine.manifest.generation)
    with naming(form_field(body)):
        plan = plan_chat(
            engine,
            request.messages,
            request.params,
            request.form,
            template_arguments=request.template_arguments,
        )
    writer = ChatWriter(
        _head("chatcmpl", model),
        engine.tokenizer,
        include_usage=request.include_usage,
        new_parser=plan.new_parser,
    )
    return Prepared(
        plan.prompt_ids,
        plan.params,
        writer,
        request.stream,
        request.answers,
        request.best_of,
        plan.new_constraint,
    )


def prepare_completion(body: dict[str, Any], model: LoadedModel, came_s: float) -> Prepared:
    """A plain completion as work. Errors as :func:`prepare_chat`."""
    engine = model.engine
    request = read_completion_request(body, engine.manifest.generation)
    prompt = request.prompt
    ids = engine.encode_prompt(prompt) if isinstance(prompt, str) else list(prompt)
    writer = CompletionWriter(
        _head("cmpl", model), engine.tokenizer, include_usage=request.include_usage
    )
    with naming(form_field(body)):
        plan = plan_text(engine, ids, request.params, request.grammar)
    return Prepared(
        plan.prompt_ids,
        plan.params,
        writer,
        request.stream,
        request.answers,
        request.best_of,
        plan.new_constraint,
    )


def _head(prefix: str, model: LoadedModel) -> ReplyHead:
    return ReplyHead(f"{prefix}-{uuid.uuid4().hex}", int(time.time()), model.served.name)


def _model_object(context: ServerContext, served: ServedModel) -> dict[str, Any]:
    # The time is that of the server's start: a bundle's own would be a path's business.
    return {
        "id": served.name,
        "object": "model",
        "created": int(context.started_at_s),
        "owned_by": _OWNER,
    }
