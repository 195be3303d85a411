"""``edge-runtime`` with a scripted engine: in this process for tests, or as a program of its own.

As a program: ``python scripted_program.py COMMAND ...``, with the script as JSON in SCRIPT: what
the model says (``pieces``), how long it takes for each (``delay_s``), and where a prompt is too
long (``context_length``).
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from edge_runtime.bundle import GenerationDefaults
from edge_runtime.engine.request import (
    ChosenLogprob,
    Delta,
    FinishReason,
    TokenLogprob,
    Usage,
)
from edge_runtime.errors import ChatTemplateError, EdgeRuntimeError, PromptTooLongError
from edge_runtime.generation.params import SamplingParams, sampling_params
from edge_runtime.testing import ByteTokenizer


@dataclass
class Script:
    """What the engine answers, and what it was asked."""

    pieces: Sequence[str] = ("Hello", " there", ".")
    delay_s: float = 0.0
    finish_reason: str = "stop"
    context_length: int = 256
    advice: GenerationDefaults = field(default_factory=lambda: GenerationDefaults(temperature=0.25))
    has_template: bool = True
    load_error: EdgeRuntimeError | None = None
    before_piece: Callable[[int], None] = lambda number: None
    loaded: list[Any] = field(default_factory=list)
    prompts: list[Any] = field(default_factory=list)
    params: list[SamplingParams] = field(default_factory=list)
    constraints: list[Any] = field(default_factory=list)
    closed: int = 0
    cancelled: int = 0


class ScriptedEngine:
    """The part of edge_runtime.engine.engine.Engine that the commands use."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.tokenizer = ByteTokenizer()
        self.manifest = SimpleNamespace(name="scripted", generation=script.advice)
        self.context_length = script.context_length
        self.memory_plan = None
        self.notices: tuple[str, ...] = ()
        self.grammars = SimpleNamespace(constraint=lambda grammar: ("constraint", grammar))
        self.provider = None
        self.chat_template = object() if script.has_template else None

    def __enter__(self) -> ScriptedEngine:
        return self

    def __exit__(self, *error: object) -> None:
        self.script.closed += 1

    def encode_prompt(self, text: str) -> list[int]:
        self.script.prompts.append(text)
        return self.tokenizer.encode(text)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        if self.chat_template is None:
            raise ChatTemplateError("scripted has no chat template", hint="use --raw")
        self.script.prompts.append([(m["role"], m["content"]) for m in messages])
        return self.tokenizer.encode("\n".join(m["content"] for m in messages))

    def default_params(self, **overrides: Any) -> SamplingParams:
        return sampling_params(self.script.advice, **overrides)

    def memory(self) -> Any:
        return SimpleNamespace(
            resident_bytes=150_000_000, anonymous_bytes=None, cache_bytes=2_000_000, cache_tokens=17
        )


class ScriptedDriver:
    """The part of edge_runtime.engine.driver.EngineDriver that the commands use."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self._engine = engine

    def __enter__(self) -> ScriptedDriver:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def submit(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, constraint: Any = None
    ) -> ScriptedHandle:
        self._engine.script.params.append(params)
        self._engine.script.constraints.append(constraint)
        return ScriptedHandle(self._engine, list(prompt_ids), params)


class ScriptedHandle:
    """One request: iterating again after an interruption goes on, as the real one does."""

    def __init__(
        self, engine: ScriptedEngine, prompt_ids: list[int], params: SamplingParams
    ) -> None:
        self._engine, self._prompt_ids, self._params = engine, prompt_ids, params
        self._cancelled = threading.Event()
        self._said = 0

    def cancel(self) -> None:
        self._cancelled.set()
        self._engine.script.cancelled += 1

    def __iter__(self) -> Iterator[Delta]:
        script = self._engine.script
        if len(self._prompt_ids) > script.context_length:
            raise PromptTooLongError(len(self._prompt_ids), script.context_length)
        while self._said < len(script.pieces):
            number, self._said = self._said, self._said + 1
            if self._cancelled.wait(script.delay_s):
                yield self._last(FinishReason.CANCELLED, number)
                return
            script.before_piece(number)
            yield Delta(script.pieces[number], logprobs=self._logprobs())
        yield self._last(FinishReason(script.finish_reason), self._said)

    def _logprobs(self) -> tuple[ChosenLogprob, ...]:
        if self._params.logprobs is None:
            return ()
        chosen = TokenLogprob(ord("H"), -0.5)
        special = TokenLogprob(257, -1.5)
        return (ChosenLogprob(chosen, (chosen, special)[: self._params.logprobs]),)

    def _last(self, reason: FinishReason, tokens: int) -> Delta:
        usage = Usage(
            prompt_tokens=len(self._prompt_ids), cached_tokens=3, completion_tokens=tokens,
            ttft_s=0.125, prefill_s=0.1, decode_s=0.5,
        )  # fmt: skip
        return Delta("", finish_reason=reason, usage=usage)


@contextmanager
def installed(script: Script) -> Iterator[None]:
    """Put the scripted engine in the place of the real one, and any model into the store."""
    from unittest.mock import patch

    def load(bundle: Path, options: Any, *, hash_file: Any) -> ScriptedEngine:
        if script.load_error is not None:
            raise script.load_error
        script.loaded.append((bundle, options))
        return ScriptedEngine(script)

    def ensure(model: str, *, quant: str | None, report: Any, home: Any) -> Path:
        return Path(f"/bundles/{model}/{quant}")

    engine = SimpleNamespace(load=load)
    with (
        patch("edge_runtime.engine.engine.Engine", engine),
        patch("edge_runtime.engine.driver.EngineDriver", ScriptedDriver),
        patch("edge_runtime.cli.session.ensure_bundle", ensure),
    ):
        yield


if __name__ == "__main__":
    from edge_runtime.cli.main import entry_point

    with installed(Script(**json.loads(os.environ.get("SCRIPT", "{}")))):
        entry_point()
