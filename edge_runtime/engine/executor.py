"""The model's side of the engine: runs steps, changes the cache, and closes both when nobody runs.

Everything that touches the cache's memory goes through here, under one lock, so that closing from
another thread waits instead of taking the memory from under a run. Knows no queue and no request.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_runtime.engine.kv_cache import KVCache
from edge_runtime.engine.model_runner import ModelRunner, StepInput
from edge_runtime.engine.slots import Admission, CacheChange
from edge_runtime.errors import RunError
from edge_runtime.providers.memory_advice import MappedFiles, trim_heap

# Each token maps some 64 KiB of the embedding; dropping them takes under a millisecond.
_DROP_EVERY_TOKENS = 32


class Executor:
    """Runs a model over its cache.

    One thread uses it; :meth:`terminate` and :meth:`close` may also be called from another.

    Args:
        runner: evaluates tokens.
        cache: the runner's cache; None where it has none.
        mapped_weights: the weights files, whose pages are let go now and then; None where there
            are none.
    """

    def __init__(
        self,
        runner: ModelRunner,
        cache: KVCache | None = None,
        mapped_weights: MappedFiles | None = None,
    ) -> None:
        self._runner = runner
        self._cache = cache
        self._mapped_weights = mapped_weights
        self._tokens_since_drop = 0
        self._closed = False
        self._in_use = threading.Lock()

    @property
    def token_bytes(self) -> int:
        """Bytes that one token takes in the cache; 0 without one."""
        cache = self._cache
        return 0 if cache is None else cache.geometry.token_bytes

    def run(self, step: StepInput) -> NDArray[np.float32]:
        """Evaluate a step.

        Returns:
            As :meth:`edge_runtime.engine.model_runner.ModelRunner.run`.

        Raises:
            RunTerminatedError: the run was stopped.
            RunError: it failed, or the engine is closed.
        """
        with self._in_use:
            if self._closed:
                raise engine_closed()
            try:
                logits = self._runner.run(step)
            except MemoryError as exc:
                raise RunError("a step ran out of memory", hint="use fewer slots") from exc
            self._tokens_since_drop += int(step.lengths.sum())
            if self._mapped_weights is not None and self._tokens_since_drop >= _DROP_EVERY_TOKENS:
                self._mapped_weights.drop_pages()
                self._tokens_since_drop = 0
            return logits

    def terminate(self) -> None:
        """Stop the run in progress, from another thread."""
        self._runner.terminate()

    def shrink(self) -> None:
        """Have allocators return what they hold unused: the heap now, onnxruntime's with a run."""
        self._runner.shrink()
        trim_heap()

    def apply(self, changes: Iterable[CacheChange]) -> None:
        """Make a plan's changes to the cache, in their order."""
        with self._in_use:
            for change in changes:
                if isinstance(change, Admission):
                    self._admit(change)
                else:
                    self._release(change.slot, keep_tokens=change.keep_tokens)

    def copy(self, source: int, target: int, *, first: int, tokens: int) -> None:
        """Make the tokens from ``first`` to before ``tokens`` of a slot those of another.

        Raises:
            RunError: the engine is closed, or it has no cache that can be copied.
        """
        with self._in_use:
            if self._closed:
                raise engine_closed()
            if self._cache is None:
                raise RunError("this engine's cache cannot be copied")
            self._cache.copy(source, target, first=first, tokens=tokens)

    def release(self, slots: Iterable[int]) -> None:
        """Give back all pages of some slots."""
        with self._in_use:
            for slot in slots:
                self._release(slot, keep_tokens=0)

    @contextmanager
    def rows(self, slot: int, *, tokens: int) -> Iterator[list[NDArray[Any]]]:
        """The keys and values of a slot's first tokens, for whoever saves or restores them.

        Yields:
            As :meth:`edge_runtime.engine.kv_cache.KVCache.rows`, valid inside the block.

        Raises:
            RunError: the engine is closed, or it has no cache that can be read.
        """
        with self._in_use:
            if self._closed:
                raise engine_closed()
            if self._cache is None:
                raise RunError("this engine's cache cannot be read or written from outside")
            yield self._cache.rows(slot, tokens=tokens)

    def close(self) -> None:
        """Let the session and the cache go, once no run is in progress. Twice is harmless."""
        self._closed = True
        with self._in_use:
            if self._mapped_weights is not None:
                with self._mapped_weights.closing():
                    self._runner.close()
            else:
                self._runner.close()
            if self._cache is not None:
                self._cache.close()
                self._cache = None
            self._mapped_weights = None

    def _admit(self, admission: Admission) -> None:
        """Bring the shared prefix into the slot, and give back what lies past it."""
        sequence = admission.sequence
        assert sequence.slot is not None
        if admission.copied_from is not None and self._cache is not None:
            tokens = sequence.held_tokens
            self._cache.copy(admission.copied_from, sequence.slot, tokens=tokens)
        self._release(sequence.slot, keep_tokens=sequence.held_tokens)

    def _release(self, slot: int, *, keep_tokens: int) -> None:
        if self._cache is not None:
            self._cache.release(slot, keep_tokens=keep_tokens)


def engine_closed() -> RunError:
    """The error of whoever asks a closed engine for anything."""
    return RunError("the engine is closed", hint="load the bundle again")
