"""The page at ``/``: one file, with a policy that lets it load and run nothing else.

Knows the file and its hashes; knows no model.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import lru_cache
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import Response

from edge_runtime.server.documents import operation

_FILE = Path(__file__).with_name("static") / "index.html"
_PROBE = "Ollama is running"  # what Ollama's clients look for
_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


def page_router() -> APIRouter:
    """The route of ``/``."""
    router = APIRouter()

    @router.head("/", include_in_schema=False)
    @router.get("/", **operation("root"))
    async def root(request: Request) -> Response:
        """Give browsers the page, and everybody else the word that Ollama's clients look for."""
        if "text/html" not in request.headers.get("accept", ""):
            return Response(_PROBE, media_type="text/plain")
        text, policy = _page()
        headers = {
            "content-security-policy": policy,
            "cache-control": "no-cache",
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "vary": "accept",
        }
        return Response(text, headers=headers, media_type="text/html")

    return router


@lru_cache(maxsize=1)
def _page() -> tuple[str, str]:
    """The page, and the policy that allows its own script and style by their hashes."""
    text = _FILE.read_text(encoding="utf-8")
    hashes: dict[str, list[str]] = {"script": [], "style": []}
    for kind, code in _INLINE.findall(text):
        digest = hashlib.sha256(code.encode("utf-8")).digest()
        hashes[kind].append(f"'sha256-{base64.b64encode(digest).decode('ascii')}'")
    policy = (
        f"default-src 'none'; script-src {' '.join(hashes['script'])}; "
        f"style-src {' '.join(hashes['style'])}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text, policy
