"""What a server says on stderr: never a path, a prompt or a key.

Knows the logging library; who asked for which lines, the settings say.
"""

from __future__ import annotations

import logging
import traceback
from pathlib import Path

from edge_runtime.errors import EdgeRuntimeError
from edge_runtime.server.outcome import RequestRecord

logger = logging.getLogger("edge_runtime.server")


class ServerLog:
    """The lines of a server.

    Args:
        requests: whether each request gets one.
    """

    def __init__(self, *, requests: bool) -> None:
        self._requests = requests

    def say(self, text: str) -> None:
        """Something for whoever runs the server."""
        logger.info("%s", text)

    def request(self, record: RequestRecord) -> None:
        """A request that has ended."""
        if self._requests:
            logger.info(
                "%s %s %s model=%s prompt=%d cached=%d generated=%d %.3fs",
                record.endpoint,
                record.status or "-",
                record.outcome.value,
                record.model or "-",
                record.prompt_tokens,
                record.cached_tokens,
                record.completion_tokens,
                record.seconds,
            )

    def failure(self, exc: EdgeRuntimeError) -> None:
        """A request that failed through no fault of its own."""
        logger.error("%s", exc.message)

    def defect(self, exc: BaseException) -> None:
        """An error that is none of ours: where it arose, without its words, which may quote."""
        frames = traceback.extract_tb(exc.__traceback__)
        where = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames[-4:]))
        logger.error("internal error: %s at %s", type(exc).__name__, where)
        logger.debug("internal error", exc_info=exc)
