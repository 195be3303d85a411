"""The parts of a server that its routes share.

Knows the pool, the settings, the log and the metrics; knows no route.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from edge_runtime.api.openai_error import ErrorReply
from edge_runtime.server.answers import Answers
from edge_runtime.server.drift import Drift
from edge_runtime.server.embedders import Embedders
from edge_runtime.server.log import ServerLog
from edge_runtime.server.metrics import ServerMetrics
from edge_runtime.server.models import LoadedModel, ModelPool, ServedModel
from edge_runtime.server.outcome import RequestRecord
from edge_runtime.server.refusals import NoEmbeddingsError
from edge_runtime.server.settings import ServerSettings

if TYPE_CHECKING:
    from edge_runtime.embedding.embedder import Embedder

Dialect = Callable[[ErrorReply], dict[str, Any]]
"""How an error is written: OpenAI's object, or Ollama's."""


def openai_dialect(reply: ErrorReply) -> dict[str, Any]:
    """``{"error": {"message", "type", "param", "code"}}``."""
    return reply.body


def ollama_dialect(reply: ErrorReply) -> dict[str, Any]:
    """``{"error": "message"}``."""
    return {"error": reply.message}


def _none_to_open(served: ServedModel) -> Embedder:
    raise AssertionError(f"nobody serves {served.name}")


class ServerContext:
    """What a server is made of.

    Args:
        pool: its models.
        settings: its limits.
        embedders: its embedding models; None where it has none.
    """

    def __init__(
        self, pool: ModelPool, settings: ServerSettings, embedders: Embedders | None = None
    ) -> None:
        self.pool = pool
        self.embedders = embedders or Embedders((), open_embedder=_none_to_open, max_waiting=1)
        self.settings = settings
        self.log = ServerLog(requests=settings.log_requests)
        self.drift = Drift()
        self.metrics = ServerMetrics(pool, self.drift)
        self.started_at_s = time.time()
        self._running: set[Answers] = set()

    @contextmanager
    def running(self, answers: Answers) -> Iterator[None]:
        """Around answers that :meth:`cancel_all` should reach."""
        self._running.add(answers)
        try:
            yield
        finally:
            self._running.discard(answers)

    def cancel_all(self) -> None:
        """End whatever runs or waits; its requests are told that the server ends."""
        for answers in list(self._running):
            answers.cancel()

    def find_embedder(self, name: str) -> ServedModel:
        """The embedding model of a name.

        Raises:
            NoEmbeddingsError: the model writes and does not embed.
            UnknownModelError: none is called so.
        """
        found = self.embedders.find(name)
        if found is not None:
            return found
        others = ", ".join(one.name for one in self.embedders.served)
        hint = f"; {others} does" if others else ": it writes text"
        raise NoEmbeddingsError(f"{self.pool.find(name).name} gives no embeddings{hint}")

    def health(self) -> dict[str, Any]:
        """What ``/health`` says besides that all is well."""
        return {"degraded": self.drift.degraded}

    def finished(self, record: RequestRecord) -> None:
        """Count a request, and log it if that was asked for."""
        self.metrics.count(record)
        self.log.request(record)

    def retry_after_s(self, model: LoadedModel) -> int:
        """Seconds until one of a full queue's requests should have ended: a mean answer's time."""
        mean_s = self.metrics.mean_seconds
        return max(1, min(60, round(mean_s / max(1, model.slots))))
