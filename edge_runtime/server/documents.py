"""The OpenAPI document: what each operation takes and answers.

Bodies are read by :mod:`edge_runtime.api`, whose refusals name the field as OpenAI's do; what is
written here is the same in the words of JSON Schema, and a test compares the two by asking the
server. Knows no route's code.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_NULL = {"type": "null"}


def _optional(schema: Schema) -> Schema:
    """Null says the same as nothing."""
    return {"anyOf": [schema, _NULL]}


def _object(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    """An object that may have further fields."""
    schema: Schema = {"type": "object", "properties": properties}
    return schema | ({"required": list(required)} if required else {})


_STRING: Schema = {"type": "string"}
_BOOLEAN: Schema = {"type": "boolean"}
_INTEGER: Schema = {"type": "integer"}
_NUMBER: Schema = {"type": "number"}
_OBJECT: Schema = {"type": "object"}


def _list(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def _number(low: float, high: float) -> Schema:
    return {"type": "number", "minimum": low, "maximum": high}


_MODEL = _optional(
    {"type": "string", "description": "One of /v1/models; the first where it is left out."}
)
_STOP = {"anyOf": [_STRING, _list(_STRING, maxItems=16)]}
_SAMPLING: dict[str, Schema] = {
    "temperature": _optional(_number(0, 100)),
    "top_p": _optional({"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
    "top_k": _optional({"type": "integer", "minimum": -1}),
    "min_p": _optional(_number(0, 1)),
    "typical_p": _optional({"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
    "repeat_penalty": _optional({"type": "number", "exclusiveMinimum": 0}),
    "presence_penalty": _optional(_number(-2, 2)),
    "frequency_penalty": _optional(_number(-2, 2)),
    "seed": _optional({"type": "integer", "minimum": 0}),
    "stop": _optional(_STOP),
    "max_tokens": _optional({"type": "integer", "minimum": 1}),
    "logit_bias": _optional({"type": "object", "additionalProperties": _number(-100, 100)}),
    "ignore_eos": _optional(_BOOLEAN),
}
_DELIVERY: dict[str, Schema] = {
    "model": _MODEL,
    "n": _optional({"type": "integer", "minimum": 1}),
    "best_of": _optional({"type": "integer", "minimum": 1}),
    "stream": _optional(_BOOLEAN),
    "stream_options": _optional(_object(include_usage=_optional(_BOOLEAN))),
    "user": _optional(_STRING),
}
_PART = _object(("type", "text"), type={"const": "text"}, text=_STRING)
_MESSAGE = _object(
    ("role",),
    role=_STRING,
    content={"anyOf": [_STRING, _list(_PART), _NULL]},
    tool_calls=_optional(_list(_OBJECT)),
)
_MESSAGES = _list(_MESSAGE, minItems=1)
_OLLAMA_MESSAGE = _object(("role",), role=_STRING, content=_optional(_STRING))
_OLLAMA_COMMON: dict[str, Schema] = {
    "model": _STRING,
    "stream": _optional(_BOOLEAN),
    "options": _optional(_OBJECT),
    "keep_alive": {"anyOf": [_NUMBER, _STRING, _NULL]},
    "think": {"anyOf": [_BOOLEAN, _STRING, _NULL]},
    "format": {"anyOf": [{"enum": ["", "json"]}, _OBJECT, _NULL]},
}
_USAGE = _object(
    prompt_tokens=_INTEGER,
    completion_tokens=_INTEGER,
    total_tokens=_INTEGER,
    prompt_tokens_details=_object(cached_tokens=_INTEGER),
)
_TEXTS: Schema = {"anyOf": [_STRING, _list(_STRING, minItems=1)]}
_VECTOR: Schema = {"anyOf": [_list(_NUMBER), _STRING]}
_EMBEDDINGS = _object(
    ("object", "data", "model", "usage"),
    object=_STRING,
    data=_list(_object(("index", "embedding"), index=_INTEGER, embedding=_VECTOR)),
    model=_STRING,
    usage=_object(prompt_tokens=_INTEGER, total_tokens=_INTEGER),
)
_OLLAMA_EMBEDDINGS = _object(
    ("model", "embeddings"), model=_STRING, embeddings=_list(_list(_NUMBER))
)
_CHOICES = _list(_object(("index", "finish_reason"), index=_INTEGER))
_COMPLETION = _object(
    ("id", "object", "created", "model", "choices", "usage"),
    id=_STRING,
    object=_STRING,
    created=_INTEGER,
    model=_STRING,
    choices=_CHOICES,
    usage=_USAGE,
    timings=_OBJECT,
)
_TOOL = _object(
    ("type", "function"),
    type={"const": "function"},
    function=_object(
        ("name",),
        name={"type": "string", "pattern": "^[a-zA-Z0-9_.-]{1,64}$"},
        description=_optional(_STRING),
        parameters=_optional(_OBJECT),
    ),
)
_FORM: dict[str, Schema] = {
    "response_format": _optional(
        _object(
            ("type",),
            type={"enum": ["text", "json_object", "json_schema"]},
            json_schema=_optional(_object(schema=_OBJECT)),
        )
    ),
    "grammar": _optional(
        {"type": "string", "description": "Lark as llguidance reads it, or GBNF."}
    ),
    "regex": _optional({"type": "string", "description": "What the whole answer matches."}),
}
_TOOLS: dict[str, Schema] = {
    "tools": _optional(_list(_TOOL, maxItems=128)),
    "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required"]}, _OBJECT, _NULL]},
    "parallel_tool_calls": _optional(_BOOLEAN),
    "reasoning_effort": _optional(_STRING),
    "reasoning_budget": _optional({"type": "integer", "minimum": -1}),
}
_MODEL_OBJECT = _object(
    ("id", "object", "created", "owned_by"),
    id=_STRING,
    object={"const": "model"},
    created=_INTEGER,
    owned_by=_STRING,
)
_MODEL_LIST = _object(("object", "data"), object={"const": "list"}, data=_list(_MODEL_OBJECT))
_OPENAI_ERROR = _object(
    ("error",),
    error=_object(
        ("message", "type"),
        message=_STRING,
        type=_STRING,
        param=_optional(_STRING),
        code={"anyOf": [_STRING, _INTEGER, _NULL]},
    ),
)
_OLLAMA_ERROR = _object(("error",), error=_STRING)

_STREAM = {"text/event-stream": {"schema": _STRING}}
_LINES = {"application/x-ndjson": {"schema": _STRING}}

_ERRORS = {
    400: "A field is missing, wrong, or cannot be honoured",
    401: "No key, or a wrong one",
    403: "A web page of another origin, or a name that is not the server's",
    404: "No such model",
    408: "The body did not arrive in time",
    413: "The body is too large",
    500: "The server's fault",
    501: "The model gives no embeddings",
    503: "Loading, full, or shutting down; Retry-After says when to come again",
    504: "The answer took too long",
}
_ALWAYS = (401, 403)
_WITH_BODY = (400, 408, 413)
_WITH_MODEL = (404, 503)
_GENERATES = (*_WITH_BODY, *_WITH_MODEL, 500, 504)


def _reads(name: str, schema: Schema) -> dict[str, Any]:
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}, "operationId": name}


def _answers(
    schema: Schema | None,
    errors: tuple[int, ...],
    error: Schema = _OPENAI_ERROR,
    also: dict[str, Any] | None = None,
    description: str = "Answered",
) -> dict[int | str, dict[str, Any]]:
    found: dict[int | str, dict[str, Any]] = {}
    if schema is not None:
        content = {"application/json": {"schema": schema}, **(also or {})}
        found[200] = {"description": description, "content": content}
    for status in sorted({*errors, *_ALWAYS}):
        body = {"application/json": {"schema": error}}
        found[status] = {"description": _ERRORS[status], "content": body}
    return found


_TEXT = {"text/plain": {"schema": _STRING}}
_OPERATIONS: dict[str, tuple[str, Schema | None, dict[int | str, dict[str, Any]]]] = {
    "chat_completions": (
        "OpenAI",
        _object(
            ("messages",),
            messages=_MESSAGES,
            max_completion_tokens=_optional({"type": "integer", "minimum": 1}),
            logprobs=_optional(_BOOLEAN),
            top_logprobs=_optional({"type": "integer", "minimum": 0, "maximum": 20}),
            chat_template_kwargs=_optional(_OBJECT),
            **_FORM,
            **_TOOLS,
            **_SAMPLING,
            **_DELIVERY,
        ),
        _answers(_COMPLETION, _GENERATES, also=_STREAM),
    ),
    "completions": (
        "OpenAI",
        _object(
            ("prompt",),
            prompt={"anyOf": [_STRING, _list({"type": "integer", "minimum": 0}, minItems=1)]},
            logprobs=_optional({"type": "integer", "minimum": 0, "maximum": 20}),
            **_FORM,
            **_SAMPLING,
            **_DELIVERY,
        ),
        _answers(_COMPLETION, _GENERATES, also=_STREAM),
    ),
    "embeddings": (
        "OpenAI",
        _object(
            ("model", "input"),
            model=_STRING,
            input=_TEXTS,
            encoding_format=_optional({"enum": ["float", "base64"]}),
            dimensions=_optional({"type": "integer", "minimum": 1}),
            user=_optional(_STRING),
        ),
        _answers(_EMBEDDINGS, (*_WITH_BODY, 404, 501, 503)),
    ),
    "models": ("OpenAI", None, _answers(_MODEL_LIST, ())),
    "model": ("OpenAI", None, _answers(_MODEL_OBJECT, (404,))),
    "ollama_chat": (
        "Ollama",
        _object(
            ("model",),
            messages=_optional(_list(_OLLAMA_MESSAGE)),
            tools=_optional(_list(_TOOL, maxItems=128)),
            **_OLLAMA_COMMON,
        ),
        _answers(_OBJECT, _GENERATES, _OLLAMA_ERROR, also=_LINES),
    ),
    "ollama_generate": (
        "Ollama",
        _object(
            ("model",),
            prompt=_optional(_STRING),
            system=_optional(_STRING),
            raw=_optional(_BOOLEAN),
            **_OLLAMA_COMMON,
        ),
        _answers(_OBJECT, _GENERATES, _OLLAMA_ERROR, also=_LINES),
    ),
    "ollama_embed": (
        "Ollama",
        _object(("model", "input"), model=_STRING, input=_TEXTS, truncate=_optional(_BOOLEAN)),
        _answers(_OLLAMA_EMBEDDINGS, (*_WITH_BODY, 404, 501, 503), _OLLAMA_ERROR),
    ),
    "ollama_tags": (
        "Ollama",
        None,
        _answers(_object(("models",), models=_list(_OBJECT)), (), _OLLAMA_ERROR),
    ),
    "ollama_show": (
        "Ollama",
        _object(("model",), model=_STRING),
        _answers(_OBJECT, (*_WITH_BODY, 404), _OLLAMA_ERROR),
    ),
    "ollama_ps": (
        "Ollama",
        None,
        _answers(_object(("models",), models=_list(_OBJECT)), (), _OLLAMA_ERROR),
    ),
    "ollama_version": (
        "Ollama",
        None,
        _answers(_object(("version",), version=_STRING), (), _OLLAMA_ERROR),
    ),
    "health": ("Service", None, _answers(_object(("status",), status=_STRING), (503,))),
    "metrics": (
        "Service",
        None,
        {200: {"description": "Prometheus text", "content": _TEXT}, **_answers(None, ())},
    ),
    "tokenize": (
        "Service",
        _object(
            ("content",),
            content=_STRING,
            model=_MODEL,
            add_special=_optional(_BOOLEAN),
            parse_special=_optional(_BOOLEAN),
            with_pieces=_optional(_BOOLEAN),
        ),
        _answers(_object(("tokens",), tokens={"type": "array"}), (*_WITH_BODY, *_WITH_MODEL)),
    ),
    "detokenize": (
        "Service",
        _object(("tokens",), tokens=_list({"type": "integer", "minimum": 0}), model=_MODEL),
        _answers(_object(("content",), content=_STRING), (*_WITH_BODY, *_WITH_MODEL)),
    ),
    "apply_template": (
        "Service",
        _object(
            ("messages",),
            messages=_MESSAGES,
            model=_MODEL,
            tools=_optional(_list(_OBJECT)),
            chat_template_kwargs=_optional(_OBJECT),
        ),
        _answers(_object(("prompt",), prompt=_STRING), (*_WITH_BODY, *_WITH_MODEL)),
    ),
    "props": ("Service", None, _answers(_OBJECT, _WITH_MODEL)),
    "root": (
        "Service",
        None,
        {
            200: {
                "description": "The page, for browsers; a word that it runs, for others",
                "content": {"text/html": {"schema": _STRING}, **_TEXT},
            },
            **_answers(None, ()),
        },
    ),
}


def operation(name: str) -> dict[str, Any]:
    """The arguments of a route that describe it."""
    tag, body, answers = _OPERATIONS[name]
    described: dict[str, Any] = {"tags": [tag], "responses": answers, "operation_id": name}
    if 200 not in answers:
        described["status_code"] = 501
    if body is not None:
        described["openapi_extra"] = _reads(name, body)
    return described


def finished_document(document: dict[str, Any]) -> dict[str, Any]:
    """The document without what the web framework adds for bodies that it does not read here."""
    for path in document["paths"].values():
        for described in path.values():
            described["responses"].pop("422", None)
    schemas = document.get("components", {}).get("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    keys = {"type": "http", "scheme": "bearer"}
    document.setdefault("components", {})["securitySchemes"] = {"key": keys}
    document["security"] = [{}, {"key": []}]
    return document
