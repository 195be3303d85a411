"""onnxruntime-genai at the far end of the pipe: it opens a bundle by its genai_config.json."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnxruntime_genai as genai

sys.path.insert(0, str(Path(__file__).parent))
from worker import serve


class Runtime:
    """One bundle, and a generator for each measurement."""

    version = str(genai.__version__)

    def __init__(self, path: str, threads: int, context_length: int) -> None:
        started = time.perf_counter()
        config = genai.Config(path)
        options = {"session_options": {"intra_op_num_threads": threads}}
        config.overlay(json.dumps({"model": {"decoder": options}}))
        self._model = genai.Model(config)
        self._context_length = context_length
        self.load_s = time.perf_counter() - started

    def generate(self, ids: Sequence[int], count: int) -> dict[str, Any]:
        """Greedy tokens after ``ids`` from an empty cache, with the time of the first and rest."""
        # After an end token it would go on without evaluating anything.
        generator = self._generator(min_length=min(len(ids) + count, self._context_length))
        started = time.perf_counter()
        generator.append_tokens(list(ids))
        tokens = [self._next(generator)]
        first = time.perf_counter()
        while len(tokens) < count:
            tokens.append(self._next(generator))
        done = time.perf_counter()
        return {"tokens": tokens, "first_s": first - started, "rest_s": done - first}

    def cached(self, ids: Sequence[int], more: Sequence[int]) -> dict[str, Any]:
        """Seconds to the first token of ``ids + more`` when ``ids`` has just been read."""
        generator = self._generator()
        generator.append_tokens(list(ids))
        started = time.perf_counter()
        generator.append_tokens(list(more))
        self._next(generator)
        return {"first_s": time.perf_counter() - started}

    def _generator(self, **options: int) -> Any:
        params = genai.GeneratorParams(self._model)
        params.set_search_options(max_length=self._context_length, do_sample=False, **options)
        return genai.Generator(self._model, params)

    @staticmethod
    def _next(generator: Any) -> int:
        generator.generate_next_token()
        return int(generator.get_next_tokens()[0])


if __name__ == "__main__":
    serve(Runtime)
