"""What Ollama's clients are told of a model: name, size, kind, context.

Most of it is in the manifest, which is read when a model is loaded; of one that was never loaded
only the name is known. Knows the wire form; knows no route.
"""

from __future__ import annotations

import datetime
import hashlib
import math
import time
from typing import Any

from edge_runtime.api.ollama_response import timestamp
from edge_runtime.bundle import Manifest
from edge_runtime.guidance.grammar import is_installed
from edge_runtime.guidance.reasoning import reasoning_tags
from edge_runtime.server.context import ServerContext
from edge_runtime.server.models import LoadedModel, ServedModel
from edge_runtime.text.chat_template import ChatTemplate


def ollama_card(context: ServerContext, served: ServedModel) -> dict[str, Any]:
    """An entry of ``/api/tags``."""
    manifest = context.pool.manifest_of(served)
    tagged = _tagged(served.name)
    return {
        "name": tagged,
        "model": tagged,
        "modified_at": timestamp(context.started_at_s),
        "size": 0 if manifest is None else sum(f.size_bytes for f in manifest.files.values()),
        "digest": _digest(manifest),
        "details": _details(manifest),
    }


def ollama_running(context: ServerContext, loaded: LoadedModel) -> dict[str, Any]:
    """An entry of ``/api/ps``."""
    card = ollama_card(context, loaded.served)
    del card["modified_at"]
    left_s = loaded.idle_until_s - time.monotonic()
    # Clients parse a time: one that never comes is far away.
    far_s = datetime.timedelta(days=3650).total_seconds()
    expires_s = time.time() + (far_s if math.isinf(left_s) else max(0.0, left_s))
    return card | {
        "expires_at": timestamp(expires_s),
        "size_vram": 0,
        "context_length": loaded.engine.context_length,
    }


def _capabilities(template: ChatTemplate | None) -> list[str]:
    """What clients look at before they send tools: any chat can have them, with the extra."""
    capabilities = ["completion"]
    if template is not None and is_installed():
        capabilities.append("tools")
    if template is not None and reasoning_tags(template.source) is not None:
        capabilities.append("thinking")
    return capabilities


def ollama_details(context: ServerContext, served: ServedModel) -> dict[str, Any]:
    """The answer of ``/api/show``."""
    manifest = context.pool.manifest_of(served)
    loaded = next((m for m in context.pool.loaded if m.served == served), None)
    template = None if loaded is None else loaded.engine.chat_template
    info: dict[str, Any] = {}
    parameters: list[str] = []
    if manifest is not None:
        kind, sizes = manifest.architecture, manifest.dimensions
        info = {
            "general.architecture": kind,
            "general.basename": manifest.name,
            f"{kind}.context_length": sizes.context_length,
            f"{kind}.embedding_length": sizes.hidden_size,
            f"{kind}.block_count": sizes.layers,
            f"{kind}.attention.head_count": sizes.heads,
            f"{kind}.attention.head_count_kv": sizes.kv_heads,
        }
        advised = {n: v for n, v in vars(manifest.generation).items() if v is not None}
        parameters = [f"{name} {value}" for name, value in advised.items()]
    return {
        "license": "" if manifest is None or manifest.license is None else manifest.license,
        "modelfile": "",
        "parameters": "\n".join(parameters),
        "template": "" if template is None else template.source,
        "details": _details(manifest),
        "model_info": info,
        "capabilities": _capabilities(template),
        "modified_at": timestamp(context.started_at_s),
    }


def _tagged(name: str) -> str:
    """The name with a tag, as Ollama always writes it."""
    return name if ":" in name else f"{name}:latest"


def _digest(manifest: Manifest | None) -> str:
    """One hash for the bundle's content: that of its files' hashes."""
    files = {} if manifest is None else manifest.files
    listing = "".join(f"{name} {files[name].sha256}\n" for name in sorted(files))
    return hashlib.sha256(listing.encode()).hexdigest()


def _details(manifest: Manifest | None) -> dict[str, Any]:
    family = "" if manifest is None else manifest.architecture
    return {
        "parent_model": "",
        "format": "onnx",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": "",
        "quantization_level": "" if manifest is None else manifest.quantization.recipe,
    }
