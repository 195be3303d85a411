"""``edge-runtime batch`` with a real engine and driver over a scripted runner.

The model shouts: it answers a prompt with the same text in capitals. As a program: ``python
batch_program.py batch ...``, with the Script's fields as JSON in SCRIPT.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from edge_runtime.bundle import (
    GraphEntry,
    Manifest,
    ModelDimensions,
    Quantization,
    SourceEntry,
    TokenizerEntry,
)
from edge_runtime.engine.engine import Engine, EngineOptions
from edge_runtime.testing import ByteTokenizer, ScriptedRunner
from edge_runtime.text.chat_template import ChatTemplate

TOKENIZER = ByteTokenizer()
END = TOKENIZER.encode("<|end|>")[0]
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}{{ mark or '' }}"
DEFECT = "defect"


def shout(seen: Sequence[int]) -> int:
    """A prompt ends at its exclamation mark; what follows repeats it in capitals, then the end."""
    prompt = bytes(t for t in seen if t < 256).partition(b"!")[0]
    said = len(seen) - len(prompt) - 1
    if prompt == DEFECT.encode():
        raise ZeroDivisionError("scripted defect")
    return (*prompt.upper(), END)[min(said, len(prompt))]


@dataclass
class Script:
    """How the engine behaves, and what became of it."""

    delay_s: float = 0.0
    context_length: int = 64
    fail_at: Sequence[int] = ()
    loaded: list[tuple[Path, EngineOptions]] = field(default_factory=list)
    runner: ScriptedRunner | None = None

    def load(self, bundle: Path, options: EngineOptions, *, hash_file: Any) -> Engine:
        self.loaded.append((bundle, options))
        size = TOKENIZER.vocabulary_size
        self.runner = ScriptedRunner(
            shout,
            vocabulary_size=size,
            fail_at=self.fail_at,
            before_run=lambda number: time.sleep(self.delay_s),
        )
        manifest = Manifest(
            schema_version=1,
            name="shouter",
            architecture="none",
            producer="test",
            dimensions=ModelDimensions(1, 1, 1, 1, 1, size, self.context_length),
            tokenizer=TokenizerEntry(end_token_ids=(END,), bos_token_id=256),
            graphs=(GraphEntry("g", (), "fused", "int8", (), "1.23"),),
            quantization=Quantization("int8"),
            files={},
            source=SourceEntry("none", "none", "0" * 64),
        )
        return Engine(
            manifest,
            runner=self.runner,
            tokenizer=TOKENIZER,
            chat_template=ChatTemplate(TEMPLATE, special_tokens={}),
            context_length=options.context_length or self.context_length,
            options=options,
        )


@contextmanager
def installed(script: Script) -> Iterator[None]:
    """Put the scripted engine in the place of the real one, and any model into the store."""

    def ensure(model: str, *, quant: str | None, report: Any, home: Any) -> Path:
        return Path(f"/bundles/{model}/{quant}")

    with (
        patch.object(Engine, "load", script.load),
        patch("edge_runtime.cli.session.ensure_bundle", ensure),
    ):
        yield


if __name__ == "__main__":
    from edge_runtime.cli.main import entry_point

    with installed(Script(**json.loads(os.environ.get("SCRIPT", "{}")))):
        entry_point()
