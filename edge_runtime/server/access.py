"""Who may use a server: keys, names under which it is reached, and pages of other origins.

A server on this machine can be reached by any web page that its user looks at. So a request that a
browser sends from another origin is refused unless that origin was allowed; and where no key is
needed, so is one that reaches the server under a name that is not this machine's, because a page
can have its own name point here (DNS rebinding). Addresses are always good: nobody can rebind one.

Knows ASGI; knows no route but those that are open to all.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edge_runtime.api.openai_error import ErrorReply
from edge_runtime.server.context import ollama_dialect, openai_dialect
from edge_runtime.server.refusals import (
    ForbiddenError,
    HttpRefusal,
    UnauthorizedError,
    reply_to,
)
from edge_runtime.server.replies import json_reply
from edge_runtime.server.settings import ServerSettings

# What a load balancer, a probe and a browser's first visit need before they have a key.
OPEN_PATHS = ("/", "/health", "/v1/health")
_ANY = "*"
_METHODS = "GET, POST, OPTIONS"
_HEADERS = "authorization, content-type, x-api-key"


class Access:
    """ASGI middleware that lets through who may come in.

    Args:
        app: what is behind it.
        settings: the keys, names and origins.
        over_network: False for a Unix socket, which no browser reaches.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, *, over_network: bool) -> None:
        self._app = app
        self._key_hashes = tuple(_digest(key) for key in settings.api_keys)
        own = {"localhost", socket.gethostname().lower()}
        self._hosts = (
            own | {f"{socket.gethostname().lower()}.local"} | _lower(settings.allowed_hosts)
        )
        self._origins = _lower(settings.allowed_origins)
        self._over_network = over_network

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        allowed = origin is not None and self._allows(origin)
        try:
            if self._over_network:
                self._check_host(headers)
                self._check_origin(headers, origin, allowed)
            if allowed and scope["method"] == "OPTIONS":
                await json_reply({}, 200, _preflight(origin or ""))(scope, receive, send)
                return
            if scope["path"] not in OPEN_PATHS:
                self._check_key(headers)
        except HttpRefusal as exc:
            await _refuse(exc, scope, receive, _with_origin(send, origin if allowed else None))
            return
        await self._app(scope, receive, _with_origin(send, origin if allowed else None))

    def _check_host(self, headers: Headers) -> None:
        if self._key_hashes:
            return  # a page that has its name point here has no key
        host = _host_of(f"//{headers.get('host', '')}")
        if host is None or not (host in self._hosts or _is_address(host)):
            raise ForbiddenError(
                "this name is not known to the server: use its address, or start it with "
                "--allowed-host"
            )

    def _check_origin(self, headers: Headers, origin: str | None, allowed: bool) -> None:
        if allowed or _is_same_origin(origin, headers.get("host", "")):
            return
        site = headers.get("sec-fetch-site", "none")
        if origin is None and (
            site in ("none", "same-origin") or headers.get("sec-fetch-mode") == "navigate"
        ):
            return
        raise ForbiddenError(
            "requests from web pages of other origins are not allowed: start the server with "
            "--allow-origin"
        )

    def _check_key(self, headers: Headers) -> None:
        if not self._key_hashes:
            return
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        given = [headers.get("x-api-key", ""), bearer.strip() if scheme.lower() == "bearer" else ""]
        # All of them, whatever comes out: the time must not tell which key is how near.
        matches = [
            hmac.compare_digest(_digest(key), known) for key in given for known in self._key_hashes
        ]
        if not any(matches):
            raise UnauthorizedError("a valid API key is needed")

    def _allows(self, origin: str) -> bool:
        return _ANY in self._origins or origin.lower() in self._origins


async def _refuse(exc: HttpRefusal, scope: Scope, receive: Receive, send: Send) -> None:
    reply = reply_to(exc)
    more = {"www-authenticate": "Bearer"} if isinstance(exc, UnauthorizedError) else {}
    body = _dialect_of(scope["path"], reply)
    await json_reply(body, reply.status_code, more)(scope, receive, send)


def _dialect_of(path: str, reply: ErrorReply) -> dict[str, object]:
    return (ollama_dialect if path.startswith("/api/") else openai_dialect)(reply)


def _with_origin(send: Send, origin: str | None) -> Send:
    if origin is None:
        return send

    async def send_with_origin(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ()), (b"vary", b"origin")]
            headers.append((b"access-control-allow-origin", origin.encode("latin-1", "replace")))
            message = {**message, "headers": headers}
        await send(message)

    return send_with_origin


def _preflight(origin: str) -> dict[str, str]:
    return {
        "access-control-allow-origin": origin,
        "access-control-allow-methods": _METHODS,
        "access-control-allow-headers": _HEADERS,
        "access-control-max-age": "600",
        "vary": "origin",
    }


def _digest(key: str) -> bytes:
    """Hashed, so that comparing takes the same time whatever the lengths."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _lower(names: Iterable[str]) -> set[str]:
    return {name.lower() for name in names}


def _host_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_same_origin(origin: str | None, host: str) -> bool:
    if origin is None or not host:
        return False
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False
