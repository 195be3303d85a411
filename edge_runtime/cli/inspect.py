"""Show what a bundle, a .gguf file or a model directory holds."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_runtime.bundle import read_manifest
from edge_runtime.cli.manifest_view import facts, quantization_table
from edge_runtime.cli.tables import pairs, table
from edge_runtime.store.home import Home
from edge_runtime.store.names import DEFAULT_RECIPE
from edge_runtime.store.progress import format_bytes
from edge_runtime.store.resolve import (
    BundleDirectory,
    SourceFile,
    StoredName,
    exporter_required,
    resolve,
)
from edge_runtime.typed_data import encode

if TYPE_CHECKING:
    from edge_export.sources.checkpoint import Checkpoint


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "model", metavar="MODEL", help="a bundle directory, a .gguf file, or a name in the store"
    )
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the facts; only headers and the manifest are read."""
    path, is_bundle = _locate(arguments.model)
    if is_bundle:
        print(_bundle_as_json(path) if arguments.json else _bundle_as_text(path))
        return 0
    with exporter_required():
        from edge_export.sources.source_model import open_source

        with open_source(path).checkpoint as checkpoint:
            show = _source_as_json if arguments.json else _source_as_text
            print(show(checkpoint))
    return 0


def _locate(model: str) -> tuple[Path, bool]:
    """The bundle or the .gguf file that MODEL means; of a name, rather what would be run."""
    reference = resolve(model, home=Home.find())
    if isinstance(reference, BundleDirectory):
        return reference.path, True
    if isinstance(reference, SourceFile):
        return reference.path, False
    return _of_name(reference)


def _of_name(stored: StoredName) -> tuple[Path, bool]:
    bundle = stored.bundles.get(stored.recipe or DEFAULT_RECIPE)
    if bundle is not None:
        return bundle, True
    if stored.source is not None:
        return stored.source, False
    return next(iter(stored.bundles.values())), True


def _bundle_as_text(path: Path) -> str:
    manifest = read_manifest(path)
    return f"{path}\n\n{facts(manifest)}\n\n{quantization_table(manifest)}"


def _bundle_as_json(path: Path) -> str:
    plain = {"kind": "bundle", "path": str(path), "manifest": encode(read_manifest(path))}
    return json.dumps(plain, indent=2, ensure_ascii=False)


def _source_as_text(checkpoint: Checkpoint) -> str:
    size = format_bytes(_size_bytes(checkpoint))
    header = pairs([("format", checkpoint.format), ("size", size)])
    keys = pairs([(key, _short(value)) for key, value in checkpoint.metadata.items()])
    rows = [
        [kind, str(tensors), format_bytes(size_bytes)]
        for kind, (tensors, size_bytes) in _kinds(checkpoint).items()
    ]
    kinds = table(["KIND", "TENSORS", "SIZE"], rows, right="TENSORS SIZE")
    return f"{checkpoint.path}\n\n{header}\n\n{keys}\n\n{kinds}"


def _source_as_json(checkpoint: Checkpoint) -> str:
    tensors = {
        name: {"kind": t.kind, "shape": list(t.shape), "size_bytes": t.size_bytes}
        for name, t in checkpoint.tensors.items()
    }
    plain = {
        "kind": checkpoint.format,
        "path": str(checkpoint.path),
        "size_bytes": _size_bytes(checkpoint),
        "metadata": {key: _plain(value) for key, value in checkpoint.metadata.items()},
        "tensors": tensors,
    }
    return json.dumps(plain, indent=2, ensure_ascii=False)


def _size_bytes(checkpoint: Checkpoint) -> int:
    """Of the file, or of the tensors in a directory."""
    if checkpoint.path.is_file():
        return checkpoint.path.stat().st_size
    return sum(tensor.size_bytes for tensor in checkpoint.tensors.values())


def _kinds(checkpoint: Checkpoint) -> dict[str, tuple[int, int]]:
    """How many tensors there are of each kind, and their bytes."""
    kinds: dict[str, tuple[int, int]] = {}
    for tensor in checkpoint.tensors.values():
        count, size_bytes = kinds.get(tensor.kind, (0, 0))
        kinds[tensor.kind] = (count + 1, size_bytes + tensor.size_bytes)
    return kinds


def _short(value: Any) -> str:
    """A metadata value on one line: lists by their length, texts by their beginning."""
    if hasattr(value, "__len__") and not isinstance(value, str):
        return f"[{len(value)} values]"
    text = repr(value) if isinstance(value, str) and "\n" in value else str(value)
    return text if len(text) <= 72 else f"{text[:69]}..."


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value
