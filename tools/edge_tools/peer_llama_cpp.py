"""The near end of the pipe to llama.cpp, which runs in an interpreter of its own.

Two runtimes in one process would share thread pools and memory and spoil each other's figures; and
the other interpreter may be one where llama-cpp-python was built. Knows nothing of this project's
engine.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from edge_runtime.errors import EdgeRuntimeError, UsageError

KINDS = ("Q4_0", "Q8_0", "Q4_K_M")


class PeerError(EdgeRuntimeError):
    """llama.cpp could not do what it was asked."""


@dataclass(frozen=True)
class Generated:
    """Greedy tokens, seconds to the first of them, and seconds for the rest."""

    tokens: tuple[int, ...]
    first_s: float
    rest_s: float


class LlamaCpp:
    """A llama.cpp process; use it as a context manager.

    Args:
        python: an interpreter that can import ``llama_cpp``.

    Raises:
        UsageError: there is no such interpreter, or it has no llama_cpp.
    """

    def __init__(self, python: Path) -> None:
        try:
            subprocess.run([str(python), "-c", "import llama_cpp"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as exc:
            raise UsageError(
                f"{python} cannot import llama_cpp",
                hint="pip install llama-cpp-python, and name that interpreter",
            ) from exc
        worker = Path(__file__).with_name("peer_llama_cpp_worker.py")
        self._process = subprocess.Popen(
            # -I: this folder stays off the worker's path, and with it this project.
            [str(python), "-I", str(worker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.version = ""

    def requantize(self, source: Path, destination: Path, kind: str, threads: int) -> None:
        """Let llama.cpp write ``source`` in another of its kinds (one of KINDS)."""
        self._ask(
            "requantize",
            source=str(source),
            destination=str(destination),
            kind=kind,
            threads=threads,
        )

    def load(self, path: Path, *, threads: int, context_length: int) -> float:
        """Load a GGUF file; gives the seconds that took."""
        answer = self._ask("load", path=str(path), threads=threads, context_length=context_length)
        self.version = str(answer["version"])
        return float(answer["load_s"])

    def generate(self, token_ids: Sequence[int], count: int) -> Generated:
        """``count`` greedy tokens after ``token_ids``, from an empty cache, past any end token."""
        answer = self._ask("generate", ids=list(token_ids), count=count)
        return Generated(tuple(answer["tokens"]), float(answer["first_s"]), float(answer["rest_s"]))

    def next_logits(self, token_ids: Sequence[int], wanted: Sequence[int]) -> list[float]:
        """Logits of the tokens ``wanted`` after ``token_ids``."""
        answer = self._ask("next_logits", ids=list(token_ids), wanted=list(wanted))
        return [float(value) for value in answer["logits"]]

    def _ask(self, operation: str, **values: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"operation": operation, **values}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as exc:
            raise PeerError(f"the llama.cpp process ended before {operation}") from exc
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(f"the llama.cpp process ended during {operation}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(f"llama.cpp: {answer['error']}")
        return answer

    def __enter__(self) -> LlamaCpp:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()
