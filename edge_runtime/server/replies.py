"""Plain JSON replies.

Knows starlette's responses; knows no field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from edge_runtime.api.json_text import json_bytes


def json_reply(
    body: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A JSON response that nobody keeps."""
    return Response(
        json_bytes(body),
        status,
        headers={"cache-control": "no-store", **(headers or {})},
        media_type="application/json",
    )
