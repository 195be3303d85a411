"""Measure what a loaded model takes, by loading it and running one chunk: nothing is guessed.

Knows the operating system's counters and the runner; makes no plan. Linux alone has a peak that can
be set back (proc(5): clear_refs), so elsewhere there is no measuring, and no memory cap.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edge_runtime.engine.kv_cache import KVCache
from edge_runtime.engine.memory_plan import MemoryCosts
from edge_runtime.engine.model_runner import ModelRunner, StepInput
from edge_runtime.errors import InvalidParameterError

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
_GROWTH_STEPS = 8


class CostMeter:
    """Takes the baseline when it is made, before the model is opened.

    Raises:
        InvalidParameterError: this system has no counters to measure with.
    """

    def __init__(self) -> None:
        try:
            _CLEAR_REFS.write_text(_RESET_PEAK, encoding="ascii")
            self._before = _counters()
        except (OSError, KeyError, ValueError) as exc:
            raise InvalidParameterError(
                "a memory cap cannot be kept here: the system does not tell what a process holds",
                hint="memory caps need Linux; elsewhere limit --context instead",
            ) from exc

    def measure(
        self,
        runner: ModelRunner,
        cache: KVCache,
        *,
        mapped_bytes: int,
        chunk_size: int,
        logits_rows: int,
    ) -> MemoryCosts:
        """Run a chunk where it costs most, at the end of a full context.

        Over an int8 cache that depends on the context, too, and is measured on the way there.

        Args:
            runner: the opened model.
            cache: its cache, empty; it is empty again afterwards.
            mapped_bytes: how much of the weights files stays mapped at most.
            chunk_size: tokens of the chunk.
            logits_rows: of how many of them the logits are wanted, the most that a step asks for.

        Raises:
            RunError: the chunk failed.
        """
        loaded = _counters()
        geometry = cache.geometry
        count = min(chunk_size, geometry.capacity)
        last = geometry.capacity - count

        def peak_at(*held: int) -> int:
            return _peak(runner, cache, count, held, logits_rows)

        if geometry.cache_type == "int8":
            chunk_peak = peak_at(0)
            # A layer's held tokens in float32 are arrays that grow with the prompt, and none has
            # room where the one before it was: the heap takes more than the last ones need.
            growing = [last * part // _GROWTH_STEPS for part in range(1, _GROWTH_STEPS + 1)]
            peak = max(chunk_peak, peak_at(*growing))
        else:
            chunk_peak = peak = peak_at(last)
        anonymous = loaded["RssAnon"] - self._before["RssAnon"]
        libraries = loaded["VmRSS"] - loaded["RssAnon"] - self._before_file()
        chunk_cache = count * geometry.token_bytes
        return MemoryCosts(
            baseline=self._before["VmRSS"] + max(0, libraries),
            weights_anonymous=max(0, anonymous),
            weights_mapped=mapped_bytes,
            activations=max(0, chunk_peak - loaded["VmRSS"] - chunk_cache),
            measured_chunk=count,
            cache_token=geometry.token_bytes,
            activations_token=-(-(peak - chunk_peak) // geometry.capacity),
        )

    def _before_file(self) -> int:
        return self._before["VmRSS"] - self._before["RssAnon"]


def _peak(
    runner: ModelRunner, cache: KVCache, count: int, held: Sequence[int], logits_rows: int
) -> int:
    """The most that is resident while chunks are read after so many tokens each, in bytes."""
    wanted = np.arange(max(0, count - logits_rows), count, dtype=np.int64)
    _CLEAR_REFS.write_text(_RESET_PEAK, encoding="ascii")
    for before in held:
        runner.run(
            StepInput(
                first_slot=0,
                # Which tokens does not matter: pages of the embedding are counted in mapped_bytes.
                token_ids=np.zeros((1, count), np.int64),
                held=np.array([before], np.int32),
                lengths=np.array([count], np.int32),
                logits_indices=wanted[None],
            )
        )
        cache.release(0)
    return _counters()["VmHWM"]


def _counters() -> dict[str, int]:
    """VmRSS, VmHWM and RssAnon of this process, in bytes."""
    found: dict[str, int] = {}
    for line in _STATUS.read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "VmHWM", "RssAnon"):
            found[name] = int(value.split()[0]) * 1024
    if len(found) < 3:
        raise KeyError("VmRSS, VmHWM, RssAnon")
    return found
