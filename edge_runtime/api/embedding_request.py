"""Requests for embeddings, in OpenAI's and Ollama's forms, and their answers.

Knows fields; knows no model and no server.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edge_runtime.api.json_fields import is_a, optional, required, shown, wrong_type
from edge_runtime.api.openai_error import RequestRefusedError

if TYPE_CHECKING:
    from edge_runtime.embedding.embedder import Embeddings

MOST_TEXTS = 2048  # OpenAI's own bound
_INPUTS = "a string, or a list of strings"


@dataclass(frozen=True)
class EmbeddingRequest:
    """What is to be embedded.

    Args:
        texts: at least one.
        as_base64: vectors as base64 of little-endian float32 instead of lists of numbers.
        truncate: take the beginning of a text that is too long.
    """

    texts: tuple[str, ...]
    as_base64: bool = False
    truncate: bool = False


def read_openai_embedding_request(body: Mapping[str, Any], width: int | None) -> EmbeddingRequest:
    """A request of ``/v1/embeddings``.

    Args:
        body: the request's object.
        width: numbers of the model's vectors; only read where ``dimensions`` is given.

    Raises:
        RequestRefusedError: a field cannot be honoured.
    """
    form = optional(body, "encoding_format", str) or "float"
    if form not in ("float", "base64"):
        raise RequestRefusedError(
            f"encoding_format is {shown(form)}; it must be float or base64",
            param="encoding_format",
            code="invalid_value",
        )
    wanted = optional(body, "dimensions", int)
    if wanted is not None and wanted != width:
        raise RequestRefusedError(
            f"dimensions is {wanted}; this model's vectors have {width} numbers and no fewer",
            param="dimensions",
            code="invalid_value",
        )
    return EmbeddingRequest(_texts(body, "input"), as_base64=form == "base64")


def read_ollama_embedding_request(body: Mapping[str, Any]) -> EmbeddingRequest:
    """A request of ``/api/embed``: what is too long is cut unless it says otherwise.

    Raises:
        RequestRefusedError: a field cannot be honoured.
    """
    truncate = optional(body, "truncate", bool)
    name = "prompt" if "prompt" in body and "input" not in body else "input"
    return EmbeddingRequest(_texts(body, name), truncate=truncate is not False)


def openai_embeddings(made: Embeddings, model: str, request: EmbeddingRequest) -> dict[str, Any]:
    """The answer of ``/v1/embeddings``."""
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": base64.b64encode(vector.astype("<f4").tobytes()).decode()
            if request.as_base64
            else _numbers(vector.tolist()),
        }
        for index, vector in enumerate(made.vectors)
    ]
    usage = {"prompt_tokens": made.tokens, "total_tokens": made.tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def ollama_embeddings(made: Embeddings, model: str, *, seconds: float) -> dict[str, Any]:
    """The answer of ``/api/embed``."""
    return {
        "model": model,
        "embeddings": [_numbers(vector) for vector in made.vectors.tolist()],
        "total_duration": round(seconds * 1e9),
        "load_duration": 0,
        "prompt_eval_count": made.tokens,
    }


def _texts(body: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = required(body, name, (str, list))
    texts = [value] if isinstance(value, str) else value
    if not texts:
        raise RequestRefusedError(f"{name} is empty", param=name, code="invalid_value")
    if len(texts) > MOST_TEXTS:
        raise RequestRefusedError(
            f"{name} has {len(texts)} texts, and a request may have {MOST_TEXTS}",
            param=name,
            code="invalid_value",
        )
    for index, text in enumerate(texts):
        where = f"{name}[{index}]"
        if not is_a(text, str):
            # Token ids are of the client's tokenizer, and mean other words here.
            raise wrong_type(where, text, f"a string: {name} is {_INPUTS}")
        if not text.strip():
            raise RequestRefusedError(f"{where} is empty", param=where, code="invalid_value")
    return tuple(texts)


def _numbers(values: Sequence[float]) -> list[float]:
    """Nine digits hold a float32 exactly."""
    return [float(f"{value:.9g}") for value in values]
