"""Between the warm slots of an engine and files: saves what a slot holds, and restores it.

Knows slots, the cache and what a file must belong to; evaluates nothing.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

from edge_runtime._version import __version__
from edge_runtime.bundle import Manifest
from edge_runtime.engine.executor import Executor
from edge_runtime.engine.kv_cache import KVCache
from edge_runtime.engine.prefix_file import (
    ENVIRONMENT,
    PrefixFile,
    PrefixHeader,
    PrefixKey,
    write_prefix,
)
from edge_runtime.engine.scheduler import Scheduler
from edge_runtime.errors import (
    PrefixFileError,
    PrefixMismatchError,
    PromptTooLongError,
    UsageError,
)
from edge_runtime.providers.ort import onnxruntime
from edge_runtime.providers.select import ProviderReport

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def prefix_key(manifest: Manifest, provider: ProviderReport, cache: KVCache) -> PrefixKey:
    """What the keys and values of a loaded model belong to.

    Args:
        manifest: of a verified bundle: its hashes are the files'.
        provider: what runs it, and which graph.
        cache: where they are.
    """
    graph, geometry = provider.graph, cache.geometry
    machine = platform.machine().lower()
    return PrefixKey(
        weights=tuple(manifest.files[name].sha256 for name in graph.weights),
        graph=manifest.files[graph.file].sha256,
        recipe=manifest.quantization.recipe,
        cache_type=str(getattr(geometry, "cache_type", "float32")),
        layers=geometry.layers,
        kv_heads=geometry.kv_heads,
        head_size=geometry.head_size,
        provider=provider.provider,
        # Kernels change with releases, not with their patches.
        onnxruntime=".".join(onnxruntime().__version__.split(".")[:2]),
        machine=_MACHINES.get(machine, machine),
    )


class SavedPrefixes:
    """Saves and restores the warm prefixes of one engine, between its steps.

    Args:
        key: what its keys and values belong to; None where they cannot be saved.
        name: the model's, for people.
        scheduler: whose slots they are in.
        executor: whose cache they are in.
        context_length: tokens that a slot may hold.
        vocabulary_size: how many tokens there are.
    """

    def __init__(
        self,
        key: PrefixKey | None,
        *,
        name: str,
        scheduler: Scheduler,
        executor: Executor,
        context_length: int,
        vocabulary_size: int,
    ) -> None:
        self._key = key
        self._name = name
        self._scheduler = scheduler
        self._executor = executor
        self._context_length = context_length
        self._vocabulary_size = vocabulary_size

    def save(self, token_ids: Sequence[int], path: Path, *, system: str | None) -> PrefixHeader:
        """Write what a free slot holds of these tokens, which have just been evaluated.

        Raises:
            PrefixFileError: something else is at ``path``.
            StorageError: it cannot be written.
            RunError: the engine is closed, or its cache cannot be read.
            UsageError: no slot holds the tokens.
        """
        key = self._required_key()
        slot = self._scheduler.slot_of(token_ids)
        if slot is None:
            raise UsageError("no slot holds these tokens any more")
        with self._executor.rows(slot, tokens=len(token_ids)) as arrays:
            return write_prefix(
                path,
                key=key,
                model=self._name,
                producer=f"edge-runtime {__version__}",
                token_ids=token_ids,
                arrays=arrays,
                system=system,
            )

    def load(self, path: Path) -> PrefixHeader:
        """Read a file into a free slot, where its tokens are warm from now on.

        Raises:
            PrefixFileError: it is damaged, or no such file. Nothing of it is used.
            PrefixMismatchError: it belongs to something else.
            PromptTooLongError: the context holds fewer tokens.
            UsageError: there is no room, because requests run.
            RunError: the engine is closed, or its cache cannot be written.
        """
        file = PrefixFile.open(path)
        file.require(self._required_key())
        ids = file.token_ids
        if len(ids) > self._context_length:
            raise PromptTooLongError(len(ids), self._context_length)
        if not 0 <= min(ids) <= max(ids) < self._vocabulary_size:
            raise PrefixFileError(f"{path}: it has tokens that the model does not have")
        room = self._scheduler.make_room(len(ids))
        if room is None:
            raise UsageError(f"there is no room for {path} while requests run")
        slot, changes = room
        self._executor.apply(changes)
        try:
            with self._executor.rows(slot, tokens=len(ids)) as arrays:
                file.read(arrays)
        except BaseException:
            self._executor.release([slot])
            raise
        self._scheduler.fill(slot, ids)
        return file.header

    def load_of_bundle(self, path: Path) -> str | None:
        """As :meth:`load`, for the prompt that a bundle brings along.

        Returns:
            Why it is not used, where only circumstances differ; None where it is.

        Raises:
            PrefixFileError: it is damaged, or of another model than the bundle's.
        """
        try:
            self.load(path)
        except PrefixMismatchError as exc:
            if set(exc.differing) <= ENVIRONMENT | {"graph", "cache_type"}:
                return f"the bundle's warm prompt is not used: {exc.message}"
            raise
        except PromptTooLongError as exc:
            return f"the bundle's warm prompt is not used: {exc.message}"
        return None

    def _required_key(self) -> PrefixKey:
        if self._key is None:
            raise UsageError("this engine's prompts cannot be saved")
        return self._key
