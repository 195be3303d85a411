"""llama.cpp at the far end of the pipe.

Drives the library's C functions directly, so that what is timed is llama.cpp and not its Python
wrapper.
"""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from worker import serve


def _silent(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    return None


_KEEP_ALIVE = llama_cpp.llama_log_callback(_silent)
# Of the library's file types, those that a peer may be compared in.
_FILE_TYPES = {"Q4_0": 2, "Q8_0": 7, "Q4_K_M": 15}
_STREAMS = 4


class Runtime:
    """One model in one context."""

    def __init__(self, path: str, threads: int, context_length: int) -> None:
        self.version = str(llama_cpp.__version__)
        started = time.perf_counter()
        params = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), params)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = context_length
        settings.n_batch = settings.n_ubatch = 512  # the library's own default for a step
        settings.n_seq_max = _STREAMS
        settings.kv_unified = True  # streams share the context instead of splitting it
        settings.n_threads = settings.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, settings)
        if not self._context:
            raise RuntimeError("llama.cpp cannot make a context")
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._vocabulary_size = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self.load_s = time.perf_counter() - started

    def generate(self, ids: list[int], count: int) -> dict[str, Any]:
        """Greedy tokens after ``ids`` from an empty cache, with the time of the first and rest."""
        self._clear()
        started = time.perf_counter()
        self._read(ids)
        tokens = [int(self._logits().argmax())]
        first = time.perf_counter()
        for _ in range(count - 1):
            self._read(tokens[-1:])
            tokens.append(int(self._logits().argmax()))
        done = time.perf_counter()
        return {"tokens": tokens, "first_s": first - started, "rest_s": done - first}

    def cached(self, ids: list[int], more: list[int]) -> dict[str, Any]:
        """Seconds to the first token of ``ids + more`` when ``ids`` has just been read."""
        self._clear()
        self._read(ids)
        started = time.perf_counter()
        self._read(more)
        self._logits().argmax()
        return {"first_s": time.perf_counter() - started}

    def together(self, prompts: list[list[int]], count: int) -> dict[str, Any]:
        """Seconds to decode ``count`` tokens after each prompt, all at once, prompts read."""
        self._clear()
        batch = llama_cpp.llama_batch_init(512, 0, len(prompts))
        try:
            for stream, ids in enumerate(prompts):
                self._fill(batch, [(token, i, stream) for i, token in enumerate(ids)])
                self._decode(batch)
            tokens = [ids[-1] for ids in prompts]
            started = time.perf_counter()
            for done in range(count):
                rows = [
                    (token, len(prompts[stream]) + done, stream)
                    for stream, token in enumerate(tokens)
                ]
                self._fill(batch, rows)
                self._decode(batch)
                tokens = [int(self._logits(i).argmax()) for i in range(len(prompts))]
            seconds = time.perf_counter() - started
        finally:
            llama_cpp.llama_batch_free(batch)
        return {"tokens": count * len(prompts), "seconds": seconds}

    def score(self, ids: list[int], destination: str) -> dict[str, Any]:
        """Write the logits at every position, float32 (S, V), as a .npy file."""
        self._clear()
        logits = np.lib.format.open_memmap(
            destination, "w+", np.float32, (len(ids), self._vocabulary_size)
        )
        batch = llama_cpp.llama_batch_init(512, 0, 1)
        try:
            for start in range(0, len(ids), 512):
                piece = ids[start : start + 512]
                self._fill(batch, [(token, start + i, 0) for i, token in enumerate(piece)])
                self._decode(batch)
                for i in range(len(piece)):
                    logits[start + i] = self._logits(i)
        finally:
            llama_cpp.llama_batch_free(batch)
        logits.flush()
        return {}

    @staticmethod
    def _fill(batch: Any, rows: list[tuple[int, int, int]]) -> None:
        """Tokens with their positions and streams, logits wanted of each."""
        batch.n_tokens = len(rows)
        for i, (token, position, stream) in enumerate(rows):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = stream
            batch.logits[i] = 1

    def _clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)

    def next_logits(self, ids: list[int], wanted: list[int]) -> dict[str, Any]:
        """The logits of some tokens after ``ids``."""
        self._clear()
        self._read(ids)
        logits = self._logits()
        return {"logits": [float(logits[token]) for token in wanted]}

    def _read(self, ids: list[int]) -> None:
        for start in range(0, len(ids), 512):
            piece = ids[start : start + 512]
            array = (llama_cpp.llama_token * len(piece))(*piece)
            self._decode(llama_cpp.llama_batch_get_one(array, len(piece)))

    def _decode(self, batch: Any) -> None:
        status = llama_cpp.llama_decode(self._context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")

    def _logits(self, row: int = -1) -> Any:
        pointer = llama_cpp.llama_get_logits_ith(self._context, row)
        return np.ctypeslib.as_array(pointer, shape=(self._vocabulary_size,))


def _requantize(source: str, destination: str, kind: str, threads: int) -> dict[str, Any]:
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = _FILE_TYPES[kind]
    params.nthread = threads
    params.allow_requantize = True
    status = llama_cpp.llama_model_quantize(
        source.encode(), destination.encode(), ctypes.byref(params)
    )
    if status != 0:
        raise RuntimeError(f"llama_model_quantize returned {status}")
    return {}


def main() -> None:
    """Silence the library and answer requests."""
    llama_cpp.llama_log_set(_KEEP_ALIVE, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    serve(Runtime, {"requantize": _requantize})


if __name__ == "__main__":
    main()
