"""Ollama's endpoints.

A request's fields are read in :mod:`edge_runtime.api`; here they meet a model. Knows routes and how
a body becomes work; knows no socket and no queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from edge_runtime._version import __version__
from edge_runtime.api.answer_form import form_field, naming
from edge_runtime.api.embedding_request import ollama_embeddings, read_ollama_embedding_request
from edge_runtime.api.json_fields import required
from edge_runtime.api.ollama_request import (
    OllamaChat,
    OllamaGenerate,
    read_ollama_chat,
    read_ollama_generate,
)
from edge_runtime.api.ollama_response import OllamaWriter, Times
from edge_runtime.guidance.answer_parser import AnswerParser
from edge_runtime.guidance.plan import AnswerPlan, plan_chat, plan_text
from edge_runtime.server.body import read_object
from edge_runtime.server.context import ServerContext, ollama_dialect
from edge_runtime.server.documents import operation
from edge_runtime.server.exchange import Exchange, Prepared, Settled
from edge_runtime.server.model_cards import ollama_card, ollama_details, ollama_running
from edge_runtime.server.models import LoadedModel, ServedModel
from edge_runtime.server.refusals import NotServedError
from edge_runtime.server.replies import json_reply

if TYPE_CHECKING:
    from edge_runtime.embedding.embedder import Embeddings

# What manages a store of models: this server serves the models that it was started with.
_STORE_PATHS = ("pull", "push", "create", "copy", "delete")


def ollama_router(context: ServerContext) -> APIRouter:
    """The routes under ``/api``."""
    router = APIRouter()

    @router.post("/api/chat", **operation("ollama_chat"))
    async def chat(request: Request) -> Response:
        """Answer a conversation."""
        return Exchange(
            context,
            request,
            endpoint="ollama_chat",
            dialect=ollama_dialect,
            prepare=prepare_ollama_chat,
        )

    @router.post("/api/generate", **operation("ollama_generate"))
    async def generate(request: Request) -> Response:
        """Answer a prompt."""
        return Exchange(
            context,
            request,
            endpoint="ollama_generate",
            dialect=ollama_dialect,
            prepare=prepare_ollama_generate,
        )

    @router.post("/api/embed", **operation("ollama_embed"))
    async def embed(request: Request) -> Response:
        """Embed texts."""
        began_s = time.perf_counter()
        made, served = await _embed(context, request)
        seconds = time.perf_counter() - began_s
        return json_reply(ollama_embeddings(made, served.name, seconds=seconds))

    @router.post("/api/embeddings", include_in_schema=False)
    async def embed_one(request: Request) -> Response:
        """Embed one text, as clients did before there was ``/api/embed``."""
        made, _ = await _embed(context, request)
        return json_reply({"embedding": made.vectors[0].tolist()})

    @router.get("/api/tags", **operation("ollama_tags"))
    async def tags() -> Response:
        """List the models."""
        return json_reply({"models": [ollama_card(context, one) for one in context.pool.served]})

    @router.post("/api/show", **operation("ollama_show"))
    async def show(request: Request) -> Response:
        """Describe one model."""
        body = await read_object(request, context.settings)
        name = body.get("model") if body.get("model") is not None else body.get("name")
        served = context.pool.find(required({"model": name}, "model", str))
        return json_reply(ollama_details(context, served))

    @router.get("/api/ps", **operation("ollama_ps"))
    async def ps() -> Response:
        """List the models that are loaded."""
        return json_reply({"models": [ollama_running(context, m) for m in context.pool.loaded]})

    @router.get("/api/version", **operation("ollama_version"))
    async def version() -> Response:
        """Say the version of this program."""
        return json_reply({"version": __version__})

    for path in _STORE_PATHS:
        router.add_api_route(
            f"/api/{path}", _not_a_store, methods=["POST", "DELETE"], include_in_schema=False
        )
    return router


async def _not_a_store() -> Response:
    raise NotServedError("this server serves the models that it was started with")


async def _embed(context: ServerContext, request: Request) -> tuple[Embeddings, ServedModel]:
    body = await read_object(request, context.settings)
    served = context.find_embedder(required(body, "model", str))
    asked = read_ollama_embedding_request(body)
    made = await context.embedders.embed(served, asked.texts, truncate=asked.truncate)
    return made, served


def prepare_ollama_chat(
    body: dict[str, Any], model: LoadedModel, came_s: float
) -> Prepared | Settled:
    """A chat as work; one without messages only loads or unloads the model.

    Raises:
        EdgeRuntimeError: it cannot be read, honoured or encoded.
    """
    engine = model.engine
    request = read_ollama_chat(body, engine.manifest.generation)
    _keep_alive(model, request)
    if not request.messages:
        return _only_loads(_writer(body, model, came_s, chat=True), request)
    with naming(form_field(body)):
        plan = plan_chat(
            engine,
            request.messages,
            request.params,
            request.form,
            template_arguments=request.template_arguments,
        )
    return _prepared(plan, _writer(body, model, came_s, chat=True, plan=plan), request)


def prepare_ollama_generate(
    body: dict[str, Any], model: LoadedModel, came_s: float
) -> Prepared | Settled:
    """A generation as work; one without a prompt only loads or unloads the model.

    Raises:
        EdgeRuntimeError: it cannot be read, honoured or encoded.
    """
    engine = model.engine
    request = read_ollama_generate(body, engine.manifest.generation)
    _keep_alive(model, request)
    if not request.prompt:
        return _only_loads(_writer(body, model, came_s, chat=False), request)
    with naming(form_field(body)):
        plan = _generation_plan(model, request)
    return _prepared(plan, _writer(body, model, came_s, chat=False, plan=plan), request)


def _generation_plan(model: LoadedModel, request: OllamaGenerate) -> AnswerPlan:
    engine = model.engine
    if request.raw or engine.chat_template is None:
        text = request.prompt if request.raw else "\n\n".join(_texts(request))
        ids = engine.encode_prompt(text)
        return plan_text(engine, ids, request.params, request.form.grammar)
    messages = [{"role": "user", "content": request.prompt}]
    if request.system is not None:
        messages.insert(0, {"role": "system", "content": request.system})
    arguments = request.template_arguments
    return plan_chat(engine, messages, request.params, request.form, template_arguments=arguments)


def _prepared(
    plan: AnswerPlan, writer: OllamaWriter, request: OllamaChat | OllamaGenerate
) -> Prepared:
    return Prepared(
        plan.prompt_ids, plan.params, writer, request.stream, new_constraint=plan.new_constraint
    )


def _writer(
    body: dict[str, Any],
    model: LoadedModel,
    came_s: float,
    *,
    chat: bool,
    plan: AnswerPlan | None = None,
) -> OllamaWriter:
    new_parser = AnswerParser if plan is None else plan.new_parser
    times = _times(model, came_s)
    return OllamaWriter(body["model"], chat=chat, times=times, new_parser=new_parser)


def _texts(request: OllamaGenerate) -> list[str]:
    return [text for text in (request.system, request.prompt) if text]


def _keep_alive(model: LoadedModel, request: OllamaChat | OllamaGenerate) -> None:
    if request.keep_alive_s is not None:
        model.keep_alive_s = request.keep_alive_s


def _only_loads(writer: OllamaWriter, request: OllamaChat | OllamaGenerate) -> Settled:
    if request.keep_alive_s == 0:
        return Settled(writer.without_answer("unload"), unload=True)
    return Settled(writer.without_answer("load"))


def _times(model: LoadedModel, came_s: float) -> Callable[[], Times]:
    # The model was loaded for this request if it was loaded after the request came.
    waited_s = max(0.0, time.monotonic() - came_s)
    load_s = min(model.load_s, waited_s) if model.loaded_monotonic_s >= came_s else 0.0
    return lambda: Times(load_s=load_s, total_s=time.monotonic() - came_s)
