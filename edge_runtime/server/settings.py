"""What whoever starts a server chooses, as one frozen value.

Knows no socket, no model and no command line.
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_runtime.errors import InvalidParameterError

MIB = 1 << 20


@dataclass(frozen=True)
class ServerSettings:
    """The limits and rules of a server.

    Args:
        api_keys: any one of them opens the server; none leaves it open.
        allowed_hosts: further names under which clients may reach a server without keys, besides
            addresses and this machine's own name.
        allowed_origins: web pages of other origins that may use it (CORS); ``*`` is any.
        max_queue: requests that may wait for a slot of a model, besides those that run.
        max_answers: most answers (``n``) to one request.
        max_body_bytes: of a request.
        body_timeout_s: for a request's body to arrive.
        header_timeout_s: for a request's head to arrive.
        request_timeout_s: from a request's arrival to its last byte.
        ping_interval_s: after which a silent event stream gets a comment.
        shutdown_timeout_s: for running requests to finish once the server is asked to end.
        log_requests: a line for each request: route, status, tokens and time, never its words.

    Raises:
        InvalidParameterError: a number that is not above 0.
    """

    api_keys: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    max_queue: int = 64
    max_answers: int = 8
    max_body_bytes: int = 4 * MIB
    body_timeout_s: float = 30.0
    header_timeout_s: float = 20.0
    request_timeout_s: float = 600.0
    ping_interval_s: float = 10.0
    shutdown_timeout_s: float = 20.0
    log_requests: bool = False

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = 0 if name in ("max_queue", "shutdown_timeout_s") else 1e-9
            if isinstance(value, (int, float)) and not isinstance(value, bool) and value < least:
                raise InvalidParameterError(f"{name} is {value}", hint="use a number above 0")
