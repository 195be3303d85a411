"""Measure what a loaded model takes, by loading it and running one chunk: nothing is guessed.

Knows the operating system's counters and the runner; makes no plan. Linux alone has a peak that can
be set back (proc(5): clear_refs), so elsewhere there is no measuring, and no memory cap.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edge_runtime.engine.kv_cache import KVCache
from edge_runtime.engine.memory_plan import MemoryCosts
from edge_runtime.engine.model_runner import ModelRunner, StepInput
from edge_runtime.errors import InvalidParameterError

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


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
        context = cache.geometry.capacity
        count = min(chunk_size, context)
        step = StepInput(
            first_slot=0,
            # Which tokens does not matter: pages of the embedding are counted in mapped_bytes.
            token_ids=np.zeros((1, count), np.int64),
            held=np.array([context - count], np.int32),
            lengths=np.array([count], np.int32),
            logits_indices=np.arange(max(0, count - logits_rows), count, dtype=np.int64)[None],
        )
        _CLEAR_REFS.write_text(_RESET_PEAK, encoding="ascii")
        runner.run(step)
        peak = _counters()["VmHWM"]
        cache.release(0)
        anonymous = loaded["RssAnon"] - self._before["RssAnon"]
        libraries = loaded["VmRSS"] - loaded["RssAnon"] - self._before_file()
        chunk_cache = count * cache.geometry.token_bytes
        return MemoryCosts(
            baseline=self._before["VmRSS"] + max(0, libraries),
            weights_anonymous=max(0, anonymous),
            weights_mapped=mapped_bytes,
            activations=max(0, peak - loaded["VmRSS"] - chunk_cache),
            measured_chunk=count,
            cache_token=cache.geometry.token_bytes,
        )

    def _before_file(self) -> int:
        return self._before["VmRSS"] - self._before["RssAnon"]


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
