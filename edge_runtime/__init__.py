"""Run small language models on devices you own.

The public names are loaded on first use, so that importing the package stays cheap and needs no
onnxruntime.
"""

from __future__ import annotations

from edge_runtime._version import __version__

# Not typing's: importing that takes longer than all else here, and a Ctrl-C meanwhile would find
# nobody to take it.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from edge_runtime.bundle import Bundle
    from edge_runtime.engine.engine import Engine, EngineOptions
    from edge_runtime.engine.request import Completion, Delta, FinishReason, TokenDelta, Usage
    from edge_runtime.errors import EdgeRuntimeError
    from edge_runtime.generation.beam import BeamParams
    from edge_runtime.generation.candidates import Candidate
    from edge_runtime.generation.params import SamplingParams

_HOMES = {
    "BeamParams": "edge_runtime.generation.beam",
    "Bundle": "edge_runtime.bundle",
    "Candidate": "edge_runtime.generation.candidates",
    "Completion": "edge_runtime.engine.request",
    "Delta": "edge_runtime.engine.request",
    "EdgeRuntimeError": "edge_runtime.errors",
    "Engine": "edge_runtime.engine.engine",
    "EngineOptions": "edge_runtime.engine.engine",
    "FinishReason": "edge_runtime.engine.request",
    "SamplingParams": "edge_runtime.generation.params",
    "TokenDelta": "edge_runtime.engine.request",
    "Usage": "edge_runtime.engine.request",
}

__all__ = [
    "BeamParams",
    "Bundle",
    "Candidate",
    "Completion",
    "Delta",
    "EdgeRuntimeError",
    "Engine",
    "EngineOptions",
    "FinishReason",
    "SamplingParams",
    "TokenDelta",
    "Usage",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
