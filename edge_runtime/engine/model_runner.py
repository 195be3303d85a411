"""Runs the graph over rows of the cache: token ids in, logits out.

Knows arrays, addresses and onnxruntime; knows no queue, no sequence and no sampling. The inputs
are the graph contract of docs/architecture.md.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edge_runtime.engine.graph_contract import check_graph
from edge_runtime.engine.kv_cache import KVCache
from edge_runtime.errors import RunError
from edge_runtime.providers.ort import first_line, onnxruntime
from edge_runtime.providers.session import SessionOptions, open_session

# Decode binds the same addresses at every step, and a prompt's full chunks do as well; more shapes
# cover drafts of each length, and last chunks that come back.
_KEPT_BINDINGS = 16
SHRINK_CPU_ARENA = ("memory.enable_memory_arena_shrinkage", "cpu:0")


@dataclass(frozen=True)
class StepInput:
    """One run of the graph.

    Args:
        first_slot: the cache rows used are ``first_slot`` and the ``B - 1`` after it.
        token_ids: int64 (B, S), new tokens, right-padded.
        held: int32 (B,), tokens that each row already holds.
        lengths: int32 (B,), new tokens of each row, at least 1.
        logits_indices: int64 (B, N), positions in S whose logits are wanted; N may be 0.
    """

    first_slot: int
    token_ids: NDArray[np.int64]
    held: NDArray[np.int32]
    lengths: NDArray[np.int32]
    logits_indices: NDArray[np.int64]


class RunTerminatedError(RunError):
    """The run was stopped from another thread; the cache past the held tokens is undefined."""


class ModelRunner(Protocol):
    """What the engine needs of a model."""

    def run(self, step: StepInput) -> NDArray[np.float32]:
        """Evaluate new tokens and extend the cache.

        Returns:
            Logits, float32 (B, N, V): a view that the next run may overwrite.

        Raises:
            RunTerminatedError: :meth:`terminate` was called.
            RunError: onnxruntime failed.
        """
        ...

    def terminate(self) -> None:
        """Stop the run in progress, from another thread; without one, the next run stops."""
        ...

    def shrink(self) -> None:
        """Have the next run return the memory that the allocator holds unused afterwards."""
        ...

    def close(self) -> None:
        """Let the session go. Closing twice is harmless."""
        ...


class OrtModelRunner:
    """The graph in an onnxruntime session, over a cache in the CPU's memory.

    Args:
        graph: the ONNX file.
        cache: the cache that the graph extends in place.
        vocabulary_size: V of the logits.
        options: threads and provider.

    Raises:
        ProviderError: the session does not open.
        ManifestError: the graph is not one of the cache's geometry and ``vocabulary_size``.
    """

    def __init__(
        self, graph: Path, cache: KVCache, *, vocabulary_size: int, options: SessionOptions
    ) -> None:
        self._ort = onnxruntime()
        opened = open_session(graph, options)
        self.assignment = opened.assignment
        """What the provider took of the graph; None on the CPU, which runs all of it."""
        self._session: Any = opened.ort_session
        check_graph(self._session, graph, cache.geometry, vocabulary_size)
        self._cache = cache
        self._vocabulary_size = vocabulary_size
        self._run_options = self._ort.RunOptions()
        self._shrinking_options = self._ort.RunOptions()
        self._shrinking_options.add_run_config_entry(*SHRINK_CPU_ARENA)
        self._shrink_next = False
        self._bindings: OrderedDict[tuple[int, int, int, int], _Binding] = OrderedDict()
        # One for all bindings: with drafts and a large vocabulary it is megabytes.
        self._logits = np.empty(0, np.float32)

    def run(self, step: StepInput) -> NDArray[np.float32]:
        """As :meth:`ModelRunner.run`."""
        if self._session is None:
            raise RunError("the session is closed")
        _check_extent(step, self._cache)
        binding = self._binding(step)
        binding.token_ids[...] = step.token_ids
        np.add(step.held, step.lengths - 1, out=binding.seqlens_k)
        binding.total_sequence_length[...] = binding.seqlens_k.max() + 1
        binding.logits_indices[...] = step.logits_indices
        options = self._shrinking_options if self._shrink_next else self._run_options
        self._shrink_next = False
        try:
            self._session.run_with_iobinding(binding.io, options)
        except Exception as exc:  # onnxruntime raises many kinds that share no base
            if self._run_options.terminate:
                self._set_terminate(False)
                raise RunTerminatedError("the run was stopped") from exc
            raise RunError(f"onnxruntime failed in a step: {first_line(exc)}") from exc
        return binding.logits

    def terminate(self) -> None:
        """As :meth:`ModelRunner.terminate`."""
        self._set_terminate(True)

    def shrink(self) -> None:
        """As :meth:`ModelRunner.shrink`."""
        self._shrink_next = True

    def close(self) -> None:
        """As :meth:`ModelRunner.close`."""
        self._bindings.clear()
        self._session = None

    def _set_terminate(self, stop: bool) -> None:
        self._run_options.terminate = self._shrinking_options.terminate = stop

    def _binding(self, step: StepInput) -> _Binding:
        rows, tokens = step.token_ids.shape
        wanted = step.logits_indices.shape[1]
        key = (step.first_slot, rows, tokens, wanted)
        if key in self._bindings:
            self._bindings.move_to_end(key)
            return self._bindings[key]
        if len(self._bindings) >= _KEPT_BINDINGS:
            self._bindings.popitem(last=False)
        shape = (rows, wanted, self._vocabulary_size)
        if math.prod(shape) > self._logits.size:
            self._bindings.clear()  # they hold the address of the smaller one
            self._logits = np.zeros(math.prod(shape), np.float32)
        binding = self._bindings[key] = _Binding(
            self._session.io_binding(),
            token_ids=np.zeros((rows, tokens), np.int64),
            seqlens_k=np.zeros(rows, np.int32),
            total_sequence_length=np.zeros((), np.int32),
            logits_indices=np.zeros((rows, wanted), np.int64),
            logits=self._logits[: math.prod(shape)].reshape(shape),
        )
        _bind(binding, self._cache, step.first_slot, rows)
        return binding


@dataclass(frozen=True)
class _Binding:
    """An IOBinding and the arrays whose addresses it holds; their contents change, not they."""

    io: Any
    token_ids: NDArray[np.int64]
    seqlens_k: NDArray[np.int32]
    total_sequence_length: NDArray[np.int32]
    logits_indices: NDArray[np.int64]
    logits: NDArray[np.float32]


def _check_extent(step: StepInput, cache: KVCache) -> None:
    """The graph writes to raw addresses: past the cache's end lies somebody else's memory."""
    g = cache.geometry
    assert 0 <= step.first_slot <= g.slots - len(step.token_ids), "no such slots"
    assert int((step.held + step.lengths).max()) <= g.capacity, "more tokens than the slot holds"


def _bind(binding: _Binding, cache: KVCache, first_slot: int, rows: int) -> None:
    io = binding.io
    for name in ("token_ids", "seqlens_k", "total_sequence_length", "logits_indices"):
        array = getattr(binding, name)
        graph_name = "input_ids" if name == "token_ids" else name
        io.bind_input(graph_name, "cpu", 0, array.dtype, list(array.shape), array.ctypes.data)
    logits = binding.logits
    io.bind_output("logits", "cpu", 0, np.float32, list(logits.shape), logits.ctypes.data)
    g = cache.geometry
    shape = [rows, g.kv_heads, g.capacity, g.head_size]
    for layer in range(g.layers):
        for part, name in enumerate(("key", "value")):
            # The same address in and out: the operator then appends instead of copying.
            address = cache.address(layer, part, first_slot)
            io.bind_input(f"past_key_values.{layer}.{name}", "cpu", 0, g.dtype, shape, address)
            io.bind_output(f"present.{layer}.{name}", "cpu", 0, g.dtype, shape, address)
