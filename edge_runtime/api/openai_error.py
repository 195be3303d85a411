"""Errors in the form that OpenAI's clients read, and the status that goes with each.

Knows the tree of errors; knows no HTTP library and no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edge_runtime.errors import (
    ChatTemplateError,
    EdgeRuntimeError,
    PromptTooLongError,
    TokenizerError,
    UsageError,
)

BAD_REQUEST = 400
SERVER_ERROR = 500


class RequestRefusedError(UsageError):
    """A request that cannot be read or honoured, with the field that is to blame.

    Args:
        message: one line that names the field and its value.
        param: the field, as in ``messages[0].content``; None where no single one is to blame.
        code: a word for programs, such as ``invalid_type``.
    """

    def __init__(self, message: str, *, param: str | None, code: str) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


@dataclass(frozen=True)
class ErrorReply:
    """What a client is told: a status as in HTTP, and the fields of OpenAI's error object.

    ``details`` are further fields, of local servers.
    """

    status_code: int
    message: str
    type: str
    param: str | None
    code: str | None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, Any]:
        """The JSON object of the reply."""
        fields = {"message": self.message, "type": self.type}
        return {"error": {**fields, "param": self.param, "code": self.code, **self.details}}


def error_reply(exc: EdgeRuntimeError) -> ErrorReply:
    """How an error is told: 400 where the request is to blame, 500 where the runtime is.

    Hints are left out: they speak of the command line.
    """
    if isinstance(exc, RequestRefusedError):
        return _bad_request(exc.message, exc.param, exc.code)
    if isinstance(exc, PromptTooLongError):
        # llama-server's clients read the counts.
        counts = {"n_prompt_tokens": exc.prompt_tokens, "n_ctx": exc.context_length}
        return _bad_request(exc.message, None, "context_length_exceeded", counts)
    if isinstance(exc, (UsageError, ChatTemplateError, TokenizerError)):
        return _bad_request(exc.message, None, None)
    return ErrorReply(SERVER_ERROR, exc.message, "server_error", None, "server_error")


def _bad_request(
    message: str,
    param: str | None,
    code: str | None,
    details: Mapping[str, Any] | None = None,
) -> ErrorReply:
    return ErrorReply(BAD_REQUEST, message, "invalid_request_error", param, code, details or {})
