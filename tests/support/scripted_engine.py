"""An engine over a scripted runner and byte tokens, for tests of the engine and its driver.

Knows no model and no file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from edge_runtime.bundle import (
    GenerationDefaults,
    GraphEntry,
    Manifest,
    ModelDimensions,
    Quantization,
    SourceEntry,
    TokenizerEntry,
)
from edge_runtime.engine.engine import Engine, EngineOptions
from edge_runtime.engine.kv_cache import CacheGeometry
from edge_runtime.generation.params import SamplingParams
from edge_runtime.testing import ByteTokenizer, ScriptedRunner, replying
from edge_runtime.text.chat_template import ChatTemplate

TOKENIZER = ByteTokenizer()
END = TOKENIZER.encode("<|end|>")[0]
GREEDY = SamplingParams(temperature=0.0)


def make_engine(
    script: Callable[[Sequence[int]], int],
    *,
    context: int = 100,
    options: EngineOptions | None = None,
    chat_template: ChatTemplate | None = None,
    defaults: GenerationDefaults | None = None,
    runner: ScriptedRunner | None = None,
    cache: Any = None,
) -> tuple[Engine, ScriptedRunner]:
    size = TOKENIZER.vocabulary_size
    runner = runner or ScriptedRunner(script, vocabulary_size=size)
    manifest = Manifest(
        schema_version=1,
        name="scripted",
        architecture="none",
        producer="test",
        dimensions=ModelDimensions(1, 1, 1, 1, 1, size, context),
        tokenizer=TokenizerEntry(end_token_ids=(END,), bos_token_id=256),
        graphs=(GraphEntry("g", (), "fused", "int8", (), "1.23"),),
        quantization=Quantization("int8"),
        files={},
        source=SourceEntry("none", "none", "0" * 64),
        generation=defaults or GenerationDefaults(),
    )
    engine = Engine(
        manifest,
        runner=runner,
        tokenizer=TOKENIZER,
        chat_template=chat_template,
        context_length=context,
        options=options or EngineOptions(),
        cache=cache,
    )
    return engine, runner


def answering(prompt: str, answer: str) -> Callable[[Sequence[int]], int]:
    return replying(TOKENIZER.encode(prompt), [*TOKENIZER.encode(answer), END, END])


class RowsOf:
    """The cache that goes with a scripted runner: copies its rows, and remembers the copies."""

    geometry = CacheGeometry(layers=1, slots=1, kv_heads=1, capacity=100, head_size=1)

    def __init__(self, runner: ScriptedRunner) -> None:
        self._runner = runner
        self.copies: list[tuple[int, int, int]] = []

    def copy(self, source: int, target: int, *, tokens: int, first: int = 0) -> None:
        self.copies.append((source, target, tokens))
        self._runner.copy(source, target, tokens=tokens, first=first)

    def release(self, slot: int, *, keep_tokens: int) -> None:
        """The runner truncates its rows by itself."""
