"""The near end of the pipe to a runtime that works in a process and an interpreter of its own.

Two runtimes in one process would share thread pools and memory and spoil each other's figures.
Knows the protocol of :mod:`edge_tools.peers.worker` and no runtime.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from edge_runtime.errors import EdgeRuntimeError, UsageError

LLAMA_KINDS = ("Q4_0", "Q8_0", "Q4_K_M")
_FOLDER = Path(__file__).parent

Self = TypeVar("Self", bound="Peer")


class PeerError(EdgeRuntimeError):
    """A runtime could not do what it was asked."""


@dataclass(frozen=True)
class Runtime:
    """A runtime that can be measured.

    Args:
        name: as people know it.
        worker: the module at the far end.
        module: what its interpreter must be able to import.
        package: what brings it.
    """

    name: str
    worker: str
    module: str
    package: str


EDGE = Runtime("edge-runtime", "edge_worker", "edge_runtime", "edge-runtime")
LLAMA_CPP = Runtime("llama.cpp", "llama_cpp_worker", "llama_cpp", "llama-cpp-python")
GENAI = Runtime("onnxruntime-genai", "genai_worker", "onnxruntime_genai", "onnxruntime-genai")
OPENVINO = Runtime("OpenVINO GenAI", "openvino_worker", "openvino_genai", "openvino-genai")


@dataclass(frozen=True)
class Generated:
    """Greedy tokens, seconds to the first of them, and seconds for the rest."""

    tokens: tuple[int, ...]
    first_s: float
    rest_s: float


class Peer:
    """A runtime's process; use it as a context manager.

    Args:
        runtime: which.
        python: an interpreter that can import its module; None is this one.

    Raises:
        UsageError: there is no such interpreter, or it has no such module.
    """

    def __init__(self, runtime: Runtime, python: Path | None = None) -> None:
        self.runtime = runtime
        self._command = command(runtime, python)
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.version = ""

    @property
    def pid(self) -> int:
        """The process, for whoever watches its memory."""
        return self._process.pid

    def load(self, path: Path, *, threads: int, context_length: int) -> float:
        """Load a model; gives the seconds that took."""
        answer = self._asked("load", path=str(path), threads=threads, context_length=context_length)
        self.version = str(answer["version"])
        return float(answer["load_s"])

    def generate(self, token_ids: Sequence[int], count: int) -> Generated:
        """``count`` greedy tokens after ``token_ids``, from an empty cache, past any end token."""
        answer = self._asked("generate", ids=list(token_ids), count=count)
        return Generated(tuple(answer["tokens"]), float(answer["first_s"]), float(answer["rest_s"]))

    def cached(self, token_ids: Sequence[int], more: Sequence[int]) -> float | None:
        """Seconds to the first token after ``token_ids + more``, the former having been read."""
        answer = self._ask("cached", ids=list(token_ids), more=list(more))
        return None if answer is None else float(answer["first_s"])

    def together(self, prompts: Sequence[Sequence[int]], count: int) -> float | None:
        """Tokens a second of several streams that decode ``count`` tokens each at once."""
        answer = self._ask("together", prompts=[list(ids) for ids in prompts], count=count)
        return None if answer is None else answer["tokens"] / answer["seconds"]

    def score(self, token_ids: Sequence[int], destination: Path) -> bool:
        """Write the logits at every position, float32 (S, V), to a .npy file, where it can."""
        answer = self._ask("score", ids=list(token_ids), destination=str(destination))
        return answer is not None

    def _asked(self, operation: str, **values: Any) -> dict[str, Any]:
        answer = self._ask(operation, **values)
        if answer is None:
            raise PeerError(f"{self.runtime.name} has no {operation}")
        return answer

    def _ask(self, operation: str, **values: Any) -> dict[str, Any] | None:
        assert self._process.stdin is not None and self._process.stdout is not None
        name = self.runtime.name
        try:
            self._process.stdin.write(json.dumps({"operation": operation, **values}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as exc:
            raise PeerError(f"the {name} process ended before {operation}") from exc
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(f"the {name} process ended during {operation}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{name}: {answer['error']}")
        return None if "unsupported" in answer else answer

    def __enter__(self: Self) -> Self:
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


class LlamaCpp(Peer):
    """llama.cpp, which can do more."""

    def __init__(self, python: Path) -> None:
        super().__init__(LLAMA_CPP, python)

    def requantize(self, source: Path, destination: Path, kind: str, threads: int) -> None:
        """Let llama.cpp write ``source`` in another of its kinds (one of LLAMA_KINDS)."""
        self._asked(
            "requantize",
            source=str(source),
            destination=str(destination),
            kind=kind,
            threads=threads,
        )

    def next_logits(self, token_ids: Sequence[int], wanted: Sequence[int]) -> list[float]:
        """Logits of the tokens ``wanted`` after ``token_ids``."""
        answer = self._asked("next_logits", ids=list(token_ids), wanted=list(wanted))
        return [float(value) for value in answer["logits"]]


def command(runtime: Runtime, python: Path | None = None) -> list[str]:
    """The worker's command line.

    Raises:
        UsageError: there is no such interpreter, or it has no such module.
    """
    worker = str(_FOLDER / f"{runtime.worker}.py")
    if python is None:
        return [sys.executable, worker]
    try:
        probe = [str(python), "-c", f"import {runtime.module}"]
        subprocess.run(probe, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as exc:
        raise UsageError(
            f"{python} cannot import {runtime.module}",
            hint=f"pip install {runtime.package}, and name that interpreter",
        ) from exc
    # -I: the folder stays off the worker's path, and with it this project.
    return [str(python), "-I", worker]
