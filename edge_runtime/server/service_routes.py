"""The server's own endpoints: health, metrics, tokens, templates, properties.

Their forms are llama-server's, where it has them. Knows routes; knows no socket.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from edge_runtime._version import __version__
from edge_runtime.api.json_fields import is_a, optional, required, wrong_type
from edge_runtime.api.openai_request import read_messages
from edge_runtime.engine.memory import process_memory
from edge_runtime.server.background import in_daemon_thread
from edge_runtime.server.body import read_object
from edge_runtime.server.context import ServerContext
from edge_runtime.server.documents import operation
from edge_runtime.server.metrics import CONTENT_TYPE
from edge_runtime.server.models import LoadedModel
from edge_runtime.server.replies import json_reply
from edge_runtime.text.chat_template import no_chat_template


def service_router(context: ServerContext) -> APIRouter:
    """The routes that are neither OpenAI's nor Ollama's."""
    router = APIRouter()
    pool = context.pool

    @router.get("/health", **operation("health"))
    @router.get("/v1/health", include_in_schema=False)
    async def health() -> Response:
        """Say whether requests are answered."""
        if pool.ready:
            return json_reply({"status": "ok"} | context.health())
        message = "The server is shutting down" if pool.closing else "Loading model"
        error = {"code": 503, "message": message, "type": "unavailable_error"}
        return json_reply({"error": error}, 503, {"retry-after": "2"})

    @router.get("/metrics", **operation("metrics"))
    async def metrics() -> Response:
        """Give Prometheus its metrics."""
        return Response(context.metrics.text(), headers={"content-type": CONTENT_TYPE})

    @router.post("/tokenize", **operation("tokenize"))
    async def tokenize(request: Request) -> Response:
        """Turn a text into token ids."""
        body = await read_object(request, context.settings)
        content = required(body, "content", str)
        special = bool(optional(body, "add_special", bool))
        parse = optional(body, "parse_special", bool)
        pieces = bool(optional(body, "with_pieces", bool))
        async with pool.lease(pool.find(optional(body, "model", str))) as model:

            def work() -> list[Any]:
                return _tokens(model, content, special, True if parse is None else parse, pieces)

            return json_reply({"tokens": await in_daemon_thread(work, name="tokenize")})

    @router.post("/detokenize", **operation("detokenize"))
    async def detokenize(request: Request) -> Response:
        """Turn token ids into a text."""
        body = await read_object(request, context.settings)
        tokens = required(body, "tokens", list)
        async with pool.lease(pool.find(optional(body, "model", str))) as model:
            size = model.engine.manifest.dimensions.vocabulary_size
            for i, token in enumerate(tokens):
                if not is_a(token, int) or not 0 <= token < size:
                    raise wrong_type(f"tokens[{i}]", token, f"a token id below {size}")
            text = model.engine.tokenizer.decode(tokens, skip_special=False)
            return json_reply({"content": text})

    @router.post("/apply-template", **operation("apply_template"))
    async def apply_template(request: Request) -> Response:
        """Show the prompt that a conversation becomes."""
        body = await read_object(request, context.settings)
        messages = read_messages(body)
        arguments = optional(body, "chat_template_kwargs", dict) or {}
        tools = optional(body, "tools", list)
        if not all(isinstance(tool, dict) for tool in tools or ()):
            raise wrong_type("tools", tools, "a list of objects")
        async with pool.lease(pool.find(optional(body, "model", str))) as model:
            template = model.engine.chat_template
            if template is None:
                raise no_chat_template(model.served.name)

            def work() -> str:
                return template.render(messages, tools=tools, extra=arguments)

            return json_reply({"prompt": await in_daemon_thread(work, name="apply-template")})

    @router.get("/props", **operation("props"))
    async def props(model: str | None = None) -> Response:
        """Describe how a model is run."""
        async with pool.lease(pool.find(model)) as loaded:
            return json_reply(_properties(context, loaded))

    return router


def _tokens(
    model: LoadedModel, content: str, special: bool, parse: bool, pieces: bool
) -> list[Any]:
    engine, tokenizer = model.engine, model.engine.tokenizer
    add_bos = special and engine.manifest.tokenizer.bos_token_id is not None
    ids = tokenizer.encode(content, add_bos=add_bos) if parse else tokenizer.encode_plain(content)
    if not parse and add_bos:
        ids = [engine.manifest.tokenizer.bos_token_id or 0, *ids]
    if not pieces:
        return ids
    return [{"id": i, "piece": _piece(tokenizer.token_bytes(i))} for i in ids]


def _piece(held: bytes) -> str | list[int]:
    """A token's text, or its bytes where they are a part of a character."""
    try:
        return held.decode("utf-8")
    except UnicodeDecodeError:
        return list(held)


def _properties(context: ServerContext, loaded: LoadedModel) -> dict[str, Any]:
    engine, plan = loaded.engine, loaded.engine.memory_plan
    memory = process_memory()
    return {
        "model_alias": loaded.served.name,
        "models": list(context.pool.names),
        "total_slots": loaded.slots,
        "n_ctx": engine.context_length,
        "default_generation_settings": {
            "n_ctx": engine.context_length,
            "params": {n: v for n, v in vars(engine.default_params()).items() if _is_plain(v)},
        },
        "chat_template": "" if engine.chat_template is None else engine.chat_template.source,
        "build_info": f"edge-runtime {__version__}",
        "quantization": engine.manifest.quantization.recipe,
        "memory": {
            "resident_bytes": memory.resident_bytes,
            "cap_bytes": context.pool.memory_cap_bytes,
            "planned_bytes": None if plan is None else plan.total,
        },
    }


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (int, float, str))
