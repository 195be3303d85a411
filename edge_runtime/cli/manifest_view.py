"""A manifest for people: its facts in pairs, and what quantization did in a table.

Knows the manifest; opens nothing.
"""

from __future__ import annotations

from edge_runtime.bundle import Manifest
from edge_runtime.cli.tables import pairs, table
from edge_runtime.store.progress import format_bytes


def facts(manifest: Manifest) -> str:
    """What the model is, where it came from and what it needs."""
    d = manifest.dimensions
    items = [
        ("name", manifest.name),
        ("architecture", manifest.architecture),
        ("licence", manifest.license or "not stated"),
        ("source", f"{manifest.source.file} ({manifest.source.format})"),
        ("source sha256", manifest.source.sha256),
        ("made by", manifest.producer),
        ("layers", str(d.layers)),
        ("hidden size", str(d.hidden_size)),
        ("heads", f"{d.heads} of {d.head_size}, {d.kv_heads} of them for keys and values"),
        ("vocabulary", f"{d.vocabulary_size} tokens"),
        ("context", f"{d.context_length} tokens"),
        ("end tokens", ", ".join(map(str, manifest.tokenizer.end_token_ids)) or "none"),
        ("sampling advice", _advice(manifest)),
        ("recipe", manifest.quantization.recipe),
    ]
    for graph in manifest.graphs:
        providers = ", ".join(graph.providers)
        cache = "" if graph.cache_type == "float32" else f", {graph.cache_type} cache"
        items.append(
            (
                "graph",
                f"{graph.file}: {graph.dialect}, {graph.precision}{cache}, for {providers}, "
                f"onnxruntime {graph.oldest_onnxruntime} or later",
            )
        )
    size = sum(entry.size_bytes for entry in manifest.files.values())
    items.append(("files", f"{len(manifest.files)}, {format_bytes(size)}"))
    return pairs(items)


def quantization_table(manifest: Manifest) -> str:
    """One row a group of tensors: what it was, what it became, the error that added."""
    groups = manifest.quantization.groups
    rows = [
        [
            group.name,
            str(group.tensors),
            group.source_kind,
            group.stored_as,
            format_bytes(group.source_bytes),
            format_bytes(group.stored_bytes),
            "none" if group.relative_error == 0 else f"{group.relative_error:.3%}",
        ]
        for group in groups
    ]
    before = sum(group.source_bytes for group in groups)
    after = sum(group.stored_bytes for group in groups)
    tensors = str(sum(group.tensors for group in groups))
    rows.append(["all", tensors, "", "", format_bytes(before), format_bytes(after), ""])
    header = ["GROUP", "TENSORS", "WAS", "BECAME", "BEFORE", "AFTER", "ERROR"]
    return table(header, rows, right="TENSORS BEFORE AFTER ERROR")


def _advice(manifest: Manifest) -> str:
    said = [
        f"{key} {value}" for key, value in vars(manifest.generation).items() if value is not None
    ]
    return ", ".join(said) or "none"
