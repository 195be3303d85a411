"""llama.cpp at the other end of a pipe. Runs in another interpreter, the one that has llama_cpp.

Reads one JSON request a line on standard input, writes one JSON answer a line on standard output.
It imports nothing of this project, and drives the library's C functions directly, so that what is
timed is llama.cpp and not its Python wrapper. :mod:`edge_tools.peer_llama_cpp` is the near end.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import llama_cpp
import numpy as np


def _silent(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    return None


_KEEP_ALIVE = llama_cpp.llama_log_callback(_silent)
# Of the library's file types, those that a peer may be compared in.
_FILE_TYPES = {"Q4_0": 2, "Q8_0": 7, "Q4_K_M": 15}


class Peer:
    """One model in one context."""

    def __init__(self, path: str, threads: int, context_length: int) -> None:
        started = time.perf_counter()
        params = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), params)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = context_length
        settings.n_batch = settings.n_ubatch = 512  # the library's own default for a step
        settings.n_threads = settings.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, settings)
        if not self._context:
            raise RuntimeError("llama.cpp cannot make a context")
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._vocabulary_size = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self.load_s = time.perf_counter() - started

    def generate(self, ids: list[int], count: int) -> dict[str, Any]:
        """Greedy tokens after ``ids`` from an empty cache, with the time of the first and rest."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        started = time.perf_counter()
        self._read(ids)
        tokens = [int(self._logits().argmax())]
        first = time.perf_counter()
        for _ in range(count - 1):
            self._read(tokens[-1:])
            tokens.append(int(self._logits().argmax()))
        done = time.perf_counter()
        return {"tokens": tokens, "first_s": first - started, "rest_s": done - first}

    def next_logits(self, ids: list[int], wanted: list[int]) -> dict[str, Any]:
        """The logits of some tokens after ``ids``."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        self._read(ids)
        logits = self._logits()
        return {"logits": [float(logits[token]) for token in wanted]}

    def _read(self, ids: list[int]) -> None:
        for start in range(0, len(ids), 512):
            piece = ids[start : start + 512]
            array = (llama_cpp.llama_token * len(piece))(*piece)
            status = llama_cpp.llama_decode(
                self._context, llama_cpp.llama_batch_get_one(array, len(piece))
            )
            if status != 0:
                raise RuntimeError(f"llama_decode returned {status}")

    def _logits(self) -> Any:
        pointer = llama_cpp.llama_get_logits_ith(self._context, -1)
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
    """Answer requests until standard input ends."""
    llama_cpp.llama_log_set(_KEEP_ALIVE, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    peer: Peer | None = None

    def load(path: str, threads: int, context_length: int) -> dict[str, Any]:
        nonlocal peer
        peer = Peer(path, threads, context_length)
        return {"version": llama_cpp.__version__, "load_s": peer.load_s}

    operations: dict[str, Callable[..., dict[str, Any]]] = {"load": load, "requantize": _requantize}
    for line in sys.stdin:
        request = json.loads(line)
        name = request.pop("operation")
        try:
            operation = operations[name] if name in operations else getattr(peer, name)
            answer = operation(**request)
        except Exception as error:  # whatever it is, the other side must hear of it
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
