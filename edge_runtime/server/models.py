"""The models of a server: found by name, loaded on demand, let go when idle.

The first is loaded when the server starts. Under a memory cap a further model is planned beside
what the loaded ones may still grow to; where that does not fit, idle models give way, the one that
was used longest ago first. Without a cap nothing gives way but by its own keep-alive.

Knows how to open a model only through the function that it is given; knows no HTTP.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum

from edge_runtime.bundle import Manifest
from edge_runtime.engine.driver import EngineDriver
from edge_runtime.engine.engine import Engine
from edge_runtime.errors import MemoryCapError
from edge_runtime.generation.params import SamplingParams
from edge_runtime.server.background import in_daemon_thread
from edge_runtime.server.refusals import UnavailableError, UnknownModelError

FOREVER = float("inf")
_REAP_EVERY_S = 1.0
_LATEST = ":latest"  # what Ollama's clients put behind a name without a tag


@dataclass(frozen=True)
class ServedModel:
    """A model that may be asked for.

    Args:
        name: what clients call it.
        reference: what the user named: a bundle, a file, or a name of the store.
    """

    name: str
    reference: str


OpenModel = Callable[[ServedModel, "int | None"], Engine]
"""Opens a model within a memory cap in bytes (None: without); called in a thread of its own."""


class State(Enum):
    """How a model stands."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"


@dataclass(eq=False)
class LoadedModel:
    """A model that can be asked.

    ``users`` are requests that hold it; ``answers`` is how many answers are queued or running.
    """

    served: ServedModel
    engine: Engine
    driver: EngineDriver
    slots: int
    load_s: float
    loaded_monotonic_s: float
    keep_alive_s: float
    users: int = 0
    answers: int = 0
    used_at_s: float = field(default_factory=time.monotonic)

    @property
    def idle_until_s(self) -> float:
        """Monotonic time at which it is let go, if nobody asks before."""
        return self.used_at_s + self.keep_alive_s

    def close(self) -> None:
        """End what runs and give the memory back. Blocks for a step at most."""
        self.driver.close()
        self.engine.close()


@dataclass(eq=False)
class _Place:
    served: ServedModel
    state: State = State.UNLOADED
    loaded: LoadedModel | None = None
    manifest: Manifest | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class ModelPool:
    """All models of a server. Used in one event loop.

    Args:
        served: what may be asked for; the first is what a request without a name means.
        open_model: opens one.
        memory_cap_bytes: for all together; None keeps no account.
        keep_alive_s: how long an idle model stays; infinite for ever.
    """

    def __init__(
        self,
        served: Sequence[ServedModel],
        *,
        open_model: OpenModel,
        memory_cap_bytes: int | None,
        keep_alive_s: float,
    ) -> None:
        self._places = {one.name: _Place(one) for one in served}
        self._open_model = open_model
        self.memory_cap_bytes = memory_cap_bytes
        self.keep_alive_s = keep_alive_s
        self._ready = False
        self._closing = False
        self._reaper: asyncio.Task[None] | None = None
        # One model is opened or closed at a time: what one takes is measured.
        self._changing = asyncio.Lock()

    @property
    def names(self) -> tuple[str, ...]:
        """All names."""
        return tuple(self._places)

    @property
    def served(self) -> tuple[ServedModel, ...]:
        """All models."""
        return tuple(place.served for place in self._places.values())

    @property
    def loaded(self) -> tuple[LoadedModel, ...]:
        """Those that are loaded now."""
        return tuple(p.loaded for p in self._places.values() if p.loaded is not None)

    @property
    def ready(self) -> bool:
        """Whether the first model was loaded and warmed, and the server does not end."""
        return self._ready and not self._closing

    @property
    def closing(self) -> bool:
        """Whether the server ends."""
        return self._closing

    def find(self, name: str | None) -> ServedModel:
        """The model of a name, with or without ``:latest``; the first where no name is given.

        Raises:
            UnknownModelError: none is called so.
        """
        if name is None:
            return next(iter(self._places.values())).served
        for candidate in (name, name.removesuffix(_LATEST)):
            if candidate in self._places:
                return self._places[candidate].served
        raise UnknownModelError(name, self.names)

    def state_of(self, served: ServedModel) -> State:
        """How a model stands."""
        return self._places[served.name].state

    def manifest_of(self, served: ServedModel) -> Manifest | None:
        """A model's manifest; None where it was never loaded."""
        return self._places[served.name].manifest

    async def start(self) -> None:
        """Load the first model, and look for idle ones from now on.

        Raises:
            EdgeRuntimeError: it does not load.
        """
        first = next(iter(self._places.values()))
        await self._ensure_loaded(first)
        self._ready = True
        self._reaper = asyncio.get_running_loop().create_task(self._reap())

    @asynccontextmanager
    async def lease(self, served: ServedModel) -> AsyncIterator[LoadedModel]:
        """Hold a model, loading it if need be; it is not let go while it is held.

        Raises:
            UnavailableError: the server is starting or ending, or there is no room now.
            EdgeRuntimeError: the model does not load.
        """
        if self._closing:
            raise UnavailableError("the server is shutting down", code="closing", retry_after_s=5)
        if not self._ready:
            raise UnavailableError("Loading model", code="loading", retry_after_s=2)
        place = self._places[served.name]
        loaded = place.loaded
        if loaded is not None and not loaded.driver.alive:
            # A defect has ended its thread: the next one may fare better with a fresh engine.
            await self._close_idle(loaded)
            loaded = place.loaded
        if loaded is None:
            loaded = await self._ensure_loaded(place)
        loaded.users += 1
        try:
            yield loaded
        finally:
            loaded.users -= 1
            loaded.used_at_s = time.monotonic()

    async def unload(self, served: ServedModel) -> None:
        """Let a model go, if nobody uses it."""
        await self._unload(self._places[served.name])

    def begin_closing(self) -> None:
        """Take no further request."""
        self._closing = True

    async def close(self) -> None:
        """End what runs and let all models go."""
        self._closing = True
        if self._reaper is not None:
            self._reaper.cancel()
        for place in self._places.values():
            loaded, place.loaded, place.state = place.loaded, None, State.UNLOADED
            if loaded is not None:
                await in_daemon_thread(loaded.close, name="close-model")

    async def _ensure_loaded(self, place: _Place) -> LoadedModel:
        async with place.lock:
            if place.loaded is None:
                # Whoever asked may leave; the model is loaded for the next one all the same.
                loading = asyncio.ensure_future(self._load_with_room(place))
                loading.add_done_callback(_retrieve)
                await asyncio.shield(loading)
            assert place.loaded is not None
            return place.loaded

    async def _load_with_room(self, place: _Place) -> LoadedModel:
        async with self._changing:
            if place.loaded is not None:  # by a request that has left
                return place.loaded
            place.state = State.LOADING
            try:
                place.loaded = await self._load(place.served)
                place.state = State.LOADED
                place.manifest = place.loaded.engine.manifest
                return place.loaded
            finally:
                if place.loaded is None:
                    place.state = State.UNLOADED

    async def _load(self, served: ServedModel) -> LoadedModel:
        while True:
            others = self.loaded
            try:
                return await in_daemon_thread(
                    lambda: self._open(served, self._cap_beside(self.loaded)), name="load-model"
                )
            except MemoryCapError as exc:
                if not others:
                    raise
                idle = [one for one in others if not one.users]
                if not idle:
                    raise UnavailableError(
                        f"{served.name} does not fit beside models that are in use",
                        code="no_memory",
                        retry_after_s=10,
                    ) from exc
            await self._close_idle(min(idle, key=lambda one: one.used_at_s))

    def _cap_beside(self, others: Sequence[LoadedModel]) -> int | None:
        """The cap, less what loaded models may still take beyond what is resident of them.

        A model's chunk and cache are counted whole, as if none of them were resident yet: what is
        resident is in the baseline that planning measures, so this errs to the safe side.
        """
        if self.memory_cap_bytes is None:
            return None
        plans = [one.engine.memory_plan for one in others]
        growth = sum(plan.activations + plan.cache for plan in plans if plan is not None)
        return max(1, self.memory_cap_bytes - growth)

    def _open(self, served: ServedModel, cap: int | None) -> LoadedModel:
        """In a thread: open, start and warm a model."""
        started_s = time.perf_counter()
        engine = self._open_model(served, cap)
        try:
            driver = EngineDriver(engine)
            try:
                _warm_up(engine, driver)
            except BaseException:
                driver.close()
                raise
        except BaseException:
            engine.close()
            raise
        return LoadedModel(
            served=served,
            engine=engine,
            driver=driver,
            slots=engine.metrics.snapshot().gauges.slots,
            load_s=time.perf_counter() - started_s,
            loaded_monotonic_s=time.monotonic(),
            keep_alive_s=self.keep_alive_s,
        )

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(_REAP_EVERY_S)
            for place in self._places.values():
                loaded = place.loaded
                if loaded is None or loaded.users or time.monotonic() < loaded.idle_until_s:
                    continue
                await self._unload(place)

    async def _unload(self, place: _Place) -> None:
        async with place.lock, self._changing:
            if place.loaded is not None and not place.loaded.users:
                await self._close_idle(place.loaded)

    async def _close_idle(self, loaded: LoadedModel) -> None:
        # Out of reach first: a request that comes now loads it again.
        place = self._places[loaded.served.name]
        place.loaded, place.state = None, State.UNLOADED
        await in_daemon_thread(loaded.close, name="close-model")


def _retrieve(loading: asyncio.Future[LoadedModel]) -> None:
    """Look at an error that nobody may be left to hear, lest asyncio complain."""
    if not loading.cancelled():
        loading.exception()


def _warm_up(engine: Engine, driver: EngineDriver) -> None:
    """Run a chunk and a decode step, so that the first request finds everything touched.

    Raises:
        EdgeRuntimeError: the model does not run.
    """
    # Any token will do; two chunks' worth would only take longer.
    length = min(64, engine.context_length - 2)
    if length < 1:
        return
    params = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)
    for _ in driver.submit([0] * length, params):
        pass
