"""The embedding models of a server: loaded when one is first asked for, and kept.

They are small and have no cache, so nothing has to give way to them. Knows how to open one only
through the function that it is given; knows no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from edge_runtime.server.background import in_daemon_thread
from edge_runtime.server.models import ServedModel
from edge_runtime.server.refusals import UnavailableError

if TYPE_CHECKING:
    from edge_runtime.embedding.embedder import Embedder, Embeddings

OpenEmbedder = Callable[[ServedModel], "Embedder"]
"""Opens a model; called in a thread of its own."""

_RETRY_AFTER_S = 1


class Embedders:
    """All embedding models of a server. Used in one event loop.

    Args:
        served: what may be asked for.
        open_embedder: opens one.
        max_waiting: requests that may wait for their turn.
    """

    def __init__(
        self, served: Sequence[ServedModel], *, open_embedder: OpenEmbedder, max_waiting: int
    ) -> None:
        self._served = {one.name: one for one in served}
        self._open = open_embedder
        self._loaded: dict[str, Embedder] = {}
        self._max_waiting = max_waiting
        self._waiting = 0
        # One batch at a time: it uses all cores that there are.
        self._turn = asyncio.Lock()

    @property
    def served(self) -> tuple[ServedModel, ...]:
        """All models."""
        return tuple(self._served.values())

    def find(self, name: str) -> ServedModel | None:
        """The model of a name, with or without ``:latest``; None where none is called so."""
        return self._served.get(name) or self._served.get(name.removesuffix(":latest"))

    async def width(self, served: ServedModel) -> int:
        """Numbers of the model's vectors; loads it if need be.

        Raises:
            As :meth:`embed`.
        """
        async with self._in_turn():
            return (await self._embedder(served)).width

    async def embed(
        self, served: ServedModel, texts: Sequence[str], *, truncate: bool
    ) -> Embeddings:
        """Embed texts in a thread, in turn.

        Raises:
            UnavailableError: too many requests wait.
            EdgeRuntimeError: the model does not load, or a text cannot be embedded.
        """
        async with self._in_turn():
            embedder = await self._embedder(served)
            return await in_daemon_thread(
                lambda: embedder.embed(texts, truncate=truncate), name="embed"
            )

    async def close(self) -> None:
        """Let all models go, after the batch in progress."""
        async with self._turn:
            for embedder in self._loaded.values():
                embedder.close()
            self._loaded.clear()

    @asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        if self._waiting >= self._max_waiting:
            raise UnavailableError(
                f"{self._waiting} requests for embeddings wait: the queue is full",
                code="queue_full",
                retry_after_s=_RETRY_AFTER_S,
            )
        self._waiting += 1
        try:
            async with self._turn:
                yield
        finally:
            self._waiting -= 1

    async def _embedder(self, served: ServedModel) -> Embedder:
        if served.name not in self._loaded:
            self._loaded[served.name] = await in_daemon_thread(
                lambda: self._open(served), name="load-embedder"
            )
        return self._loaded[served.name]
