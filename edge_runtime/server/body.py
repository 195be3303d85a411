"""Reads a request's body, within a size and a time.

Knows starlette's request; knows no field.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request

from edge_runtime.api.json_text import json_object
from edge_runtime.server.refusals import BodyTooLargeError, SlowRequestError
from edge_runtime.server.settings import ServerSettings


async def read_object(request: Request, settings: ServerSettings) -> dict[str, Any]:
    """The JSON object that a request carries, whatever its content type says (curl's is wrong).

    Raises:
        BodyTooLargeError: it is larger than a request may be.
        SlowRequestError: it did not arrive in time.
        RequestRefusedError: it is no JSON object.
        starlette.requests.ClientDisconnect: the client has left.
    """
    limit = settings.max_body_bytes
    stated = request.headers.get("content-length", "")
    if stated.isdecimal() and int(stated[:20]) > limit:
        raise BodyTooLargeError(limit)
    try:
        raw = await asyncio.wait_for(_read(request, limit), settings.body_timeout_s)
    except asyncio.TimeoutError as exc:
        raise SlowRequestError(
            f"the request's body did not arrive within {settings.body_timeout_s:g} s"
        ) from exc
    return json_object(raw)


async def _read(request: Request, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise BodyTooLargeError(limit)
        parts.append(part)
    return b"".join(parts)
