"""OpenVINO GenAI at the far end of the pipe. It reads GGUF files in Q4_0 and Q8_0 itself."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai

sys.path.insert(0, str(Path(__file__).parent))
from worker import serve


class Runtime:
    """One GGUF file in one pipeline on the CPU; its context grows as it needs."""

    version = str(genai.__version__)

    def __init__(self, path: str, threads: int, context_length: int) -> None:
        started = time.perf_counter()
        self._pipeline = genai.LLMPipeline(path, "CPU", INFERENCE_NUM_THREADS=threads)
        self.load_s = time.perf_counter() - started

    def generate(self, ids: Sequence[int], count: int) -> dict[str, Any]:
        """Greedy tokens after ``ids`` from an empty cache, with the time of the first and rest."""
        settings = genai.GenerationConfig()
        settings.max_new_tokens = count
        settings.ignore_eos = True
        settings.do_sample = False
        arrivals: list[float] = []

        class Clock(genai.StreamerBase):  # type: ignore[misc]
            def write(self, token: Any) -> Any:
                arrivals.append(time.perf_counter())
                return genai.StreamingStatus.RUNNING

            def end(self) -> None:
                return None

        started = time.perf_counter()
        tensor = openvino.Tensor(np.array([ids], np.int64))
        result = self._pipeline.generate(tensor, settings, Clock())
        tokens = [int(token) for token in result.tokens[0]][-count:]
        return {
            "tokens": tokens,
            "first_s": arrivals[0] - started,
            "rest_s": arrivals[-1] - arrivals[0],
        }


if __name__ == "__main__":
    serve(Runtime)
