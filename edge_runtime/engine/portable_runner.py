"""Runs a portable graph over the cache: as the fused one, a row at a time and with copied rows.

The graph reads a slot of the cache and gives the new rows; they are put in their place here. A
graph of fixed shapes takes a fixed number of tokens, and shorter steps are padded. Knows arrays and
onnxruntime; knows no queue, no sequence and no sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_runtime.engine.kv_cache import KVCache
from edge_runtime.engine.model_runner import SHRINK_CPU_ARENA, RunTerminatedError, StepInput
from edge_runtime.errors import ManifestError, RunError
from edge_runtime.providers.ort import first_line, onnxruntime
from edge_runtime.providers.session import SessionOptions, open_session

# What a masked position gets: float16 holds it, and its exponential is 0.
_MASKED = -1e4
_FLOATS = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


@dataclass(frozen=True)
class _Graph:
    """An opened graph; ``tokens`` and ``capacity`` are None where it leaves them open."""

    session: Any
    tokens: int | None
    capacity: int | None
    dtype: Any


class PortableRunner:
    """A runner over one graph, or over a graph for chunks and one for single tokens.

    Args:
        graphs: the ONNX files; of those that take a step's tokens the smallest is run.
        cache: the cache that new rows are put in.
        vocabulary_size: V of the logits.
        options: threads and provider.

    Raises:
        ProviderError: a session does not open.
        ManifestError: a graph is not one of the cache's geometry and ``vocabulary_size``.
    """

    def __init__(
        self,
        graphs: Sequence[Path],
        cache: KVCache,
        *,
        vocabulary_size: int,
        options: SessionOptions,
    ) -> None:
        options_of = onnxruntime().RunOptions
        self._run_options, self._shrinking_options = options_of(), options_of()
        self._shrinking_options.add_run_config_entry(*SHRINK_CPU_ARENA)
        self._shrink_next = False
        self._cache = cache
        self._vocabulary_size = vocabulary_size
        opened = [open_session(graph, options) for graph in graphs]
        self.assignment = opened[0].assignment
        """What the provider took of the first graph; None on the CPU, which runs all of it."""
        made = [
            _describe(session.ort_session, file, cache, vocabulary_size)
            for session, file in zip(opened, graphs, strict=True)
        ]
        # Open ones last: any step fits them.
        self._graphs = sorted(made, key=lambda graph: graph.tokens or 1 << 30)

    def run(self, step: StepInput) -> NDArray[np.float32]:
        """As :meth:`edge_runtime.engine.model_runner.ModelRunner.run`."""
        if not self._graphs:
            raise RunError("the session is closed")
        rows, wanted = step.logits_indices.shape
        logits = np.zeros((rows, wanted, self._vocabulary_size), np.float32)
        for row in range(rows):
            self._run_row(step, row, logits[row])
        return logits

    def terminate(self) -> None:
        """As :meth:`edge_runtime.engine.model_runner.ModelRunner.terminate`."""
        self._set_terminate(True)

    def shrink(self) -> None:
        """As :meth:`edge_runtime.engine.model_runner.ModelRunner.shrink`."""
        self._shrink_next = True

    def close(self) -> None:
        """As :meth:`edge_runtime.engine.model_runner.ModelRunner.close`."""
        self._graphs = []

    def _run_row(self, step: StepInput, row: int, logits: NDArray[np.float32]) -> None:
        """One sequence: as many runs as its tokens and wanted logits need."""
        count, slot = int(step.lengths[row]), step.first_slot + row
        largest = self._graphs[-1].tokens or count
        for start in range(0, count, largest):
            stop = min(start + largest, count)
            graph = next(g for g in self._graphs if g.tokens is None or g.tokens >= stop - start)
            held = int(step.held[row]) + start
            self._check_extent(graph, held + stop - start)
            ids = step.token_ids[row, start:stop]
            wanted = step.logits_indices[row]
            targets = [n for n, i in enumerate(wanted) if start <= i < stop]
            # A graph of fixed shapes gives the logits of one position, an open one those of all.
            at_once = 1 if graph.tokens else max(1, len(targets))
            new_rows: list[NDArray[Any]] = []
            for first in range(0, max(1, len(targets)), at_once):
                group = targets[first : first + at_once]
                made = self._run_once(
                    graph, ids, held, slot, [int(wanted[n]) - start for n in group]
                )
                logits[group] = made[0][0, : len(group)]
                new_rows = made[1:]
            self._put(new_rows, slot, held, stop - start)

    def _check_extent(self, graph: _Graph, tokens: int) -> None:
        assert tokens <= (graph.capacity or self._cache.geometry.capacity), "more than the cache"

    def _run_once(
        self, graph: _Graph, ids: NDArray[np.int64], held: int, slot: int, wanted: list[int]
    ) -> list[NDArray[Any]]:
        """Logits (1, N, V), and the new rows (1, KV, S, D) of each layer's key and value."""
        count = len(ids)
        size = graph.tokens or count
        capacity = graph.capacity or held
        padded = np.zeros((1, size), np.int64)
        padded[0, :count] = ids
        # Padding has a position, too, and must stay within the table of angles.
        positions = np.minimum(held + np.arange(size), held + count - 1)
        # The cache's rows first, then the new ones: each sees what is held and what is not later.
        mask = np.full((1, 1, size, capacity + size), _MASKED, graph.dtype)
        mask[..., :held] = 0
        mask[0, 0, :, capacity:][np.tril_indices(size)] = 0
        picked = np.zeros((1, 1 if graph.tokens else len(wanted), size), graph.dtype)
        for n, index in enumerate(wanted):
            picked[0, n, index] = 1
        feeds: dict[str, NDArray[Any]] = {
            "input_ids": padded,
            "position_ids": positions[None].astype(np.int64),
            "attention_mask": mask,
            "logits_rows": picked,
        }
        for layer in range(self._cache.geometry.layers):
            for part, name in enumerate(("key", "value")):
                array = self._cache.array(layer, part)
                past = np.zeros((1, array.shape[1], capacity, array.shape[3]), graph.dtype)
                past[0, :, :held] = array[slot, :, :held]
                feeds[f"past_key_values.{layer}.{name}"] = past
        try:
            options = self._shrinking_options if self._shrink_next else self._run_options
            self._shrink_next = False
            made: list[NDArray[Any]] = graph.session.run(None, feeds, options)
        except Exception as exc:  # onnxruntime raises many kinds that share no base
            if self._run_options.terminate:
                self._set_terminate(False)
                raise RunTerminatedError("the run was stopped") from exc
            raise RunError(f"onnxruntime failed in a step: {first_line(exc)}") from exc
        return made

    def _set_terminate(self, stop: bool) -> None:
        self._run_options.terminate = self._shrinking_options.terminate = stop

    def _put(self, rows: list[NDArray[Any]], slot: int, held: int, count: int) -> None:
        for n, new in enumerate(rows):
            layer, part = divmod(n, 2)
            self._cache.array(layer, part)[slot, :, held : held + count] = new[0, :, :count]


def _describe(session: Any, file: Path, cache: KVCache, vocabulary_size: int) -> _Graph:
    """Shapes and type of an opened graph, checked against the cache."""
    inputs = {value.name: value for value in session.get_inputs()}
    g = cache.geometry
    wanted = {"input_ids", "position_ids", "attention_mask", "logits_rows"}
    cached = {f"past_key_values.{n}.{part}" for n in range(g.layers) for part in ("key", "value")}
    if set(inputs) != wanted | cached:
        odd = sorted(set(inputs) ^ (wanted | cached))
        raise ManifestError(f"{file} is not a portable graph of this model: {', '.join(odd[:4])}")
    past = inputs["past_key_values.0.key"]
    tokens, capacity = inputs["input_ids"].shape[1], past.shape[2]
    if (past.shape[1], past.shape[3]) != (g.kv_heads, g.head_size):
        raise ManifestError(f"{file}: its cache has other heads than the manifest's")
    if session.get_outputs()[0].shape[2] != vocabulary_size:
        raise ManifestError(f"{file}: its logits are not of {vocabulary_size} tokens")
    return _Graph(
        session,
        tokens if isinstance(tokens, int) else None,
        capacity if isinstance(capacity, int) else None,
        _FLOATS[past.type],
    )
