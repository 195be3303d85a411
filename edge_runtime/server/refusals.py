"""Why a server does not answer, as errors with a status of HTTP; and every error as a reply.

HttpRefusal
├── UnauthorizedError    401  no key, or a wrong one
├── ForbiddenError       403  a web page of another origin, or a name that is not this machine's
├── UnknownModelError    404  no model of this server is called so
├── NotServedError       404 or 501: a path that is not here, or that no model can serve
├── BodyTooLargeError    413  more bytes than a request may have
├── SlowRequestError     408  the body did not arrive in time
├── UnavailableError     503  loading, full, or shutting down; says when to come again
└── TimedOutError        504  the answer took longer than a request may

Knows no HTTP library.
"""

from __future__ import annotations

from collections.abc import Sequence

from edge_runtime.api.json_fields import shown
from edge_runtime.api.openai_error import ErrorReply, error_reply
from edge_runtime.errors import EdgeRuntimeError, QueueFullError

_RETRY_AFTER_S = 2


class HttpRefusal(EdgeRuntimeError):  # noqa: N818 -- the base of those below
    """A request that gets no answer, for a reason outside of what it asks the model."""

    status_code = 500
    type = "server_error"
    code: str | None = None
    param: str | None = None
    retry_after_s: int | None = None


class UnauthorizedError(HttpRefusal):
    """No key, or a wrong one."""

    status_code, type, code = 401, "authentication_error", "invalid_api_key"


class ForbiddenError(HttpRefusal):
    """A browser that shows somebody else's page."""

    status_code, type, code = 403, "permission_error", "forbidden"


class UnknownModelError(HttpRefusal):
    """No model of this server is called so."""

    status_code, type, code, param = 404, "invalid_request_error", "model_not_found", "model"

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(f"model {shown(name)} not found; this server has {', '.join(known)}")


class NotServedError(HttpRefusal):
    """A path that is not here, or a method that it does not take."""

    status_code, type, code = 404, "not_found_error", "not_found"


class NoEmbeddingsError(NotServedError):
    """Embeddings of a model that gives none."""

    status_code, code, param = 501, "unsupported_model", "model"


class BodyTooLargeError(HttpRefusal):
    """More bytes than a request may have."""

    status_code, type, code = 413, "invalid_request_error", "request_too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(f"the request's body is larger than {limit} bytes")


class SlowRequestError(HttpRefusal):
    """A body that did not arrive in time."""

    status_code, type, code = 408, "invalid_request_error", "request_timeout"


class UnavailableError(HttpRefusal):
    """Not now."""

    status_code, type, code = 503, "unavailable_error", "unavailable"

    def __init__(self, message: str, *, code: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s


class TimedOutError(HttpRefusal):
    """The answer took longer than a request may."""

    status_code, type, code = 504, "timeout_error", "timeout"

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"the request took longer than {limit_s:g} s")


def reply_to(exc: EdgeRuntimeError) -> ErrorReply:
    """How any error of the tree is told."""
    if isinstance(exc, QueueFullError):
        exc = queue_full(exc.waiting, _RETRY_AFTER_S)
    if isinstance(exc, HttpRefusal):
        return ErrorReply(exc.status_code, exc.message, exc.type, exc.param, exc.code)
    return error_reply(exc)


def retry_after_of(exc: EdgeRuntimeError) -> int | None:
    """Seconds after which the same request may do better; None where that is not known."""
    if isinstance(exc, QueueFullError):
        return _RETRY_AFTER_S
    return exc.retry_after_s if isinstance(exc, HttpRefusal) else None


def queue_full(waiting: int, retry_after_s: int) -> UnavailableError:
    """The refusal of a request that finds no room to wait."""
    return UnavailableError(
        f"{waiting} answers are running or waiting: the queue is full",
        code="queue_full",
        retry_after_s=retry_after_s,
    )
