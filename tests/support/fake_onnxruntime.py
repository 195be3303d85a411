"""A stand-in for the onnxruntime module, which answers as its script says.

Knows what the real one was seen to do: providers in its build, errors and silent fallbacks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any


@dataclass
class Script:
    """What the module is to do, and what was asked of it."""

    version: str = "1.23.2"
    available: tuple[str, ...] = ("CPUExecutionProvider",)
    starts: tuple[str, ...] = ("CPUExecutionProvider",)
    error: Exception | None = None
    opened: list[tuple[str, Any, dict[str, Any]]] = field(default_factory=list)
    fallback_disabled: int = 0


class SessionOptions(SimpleNamespace):
    def __init__(self) -> None:
        super().__init__(entries={})

    def add_session_config_entry(self, key: str, value: str) -> None:
        self.entries[key] = value


def module(script: Script) -> ModuleType:
    """The module."""
    fake = ModuleType("onnxruntime")
    fake.__version__ = script.version  # type: ignore[attr-defined]

    class InferenceSession:
        def __init__(self, path: str, options: Any, **arguments: Any) -> None:
            script.opened.append((path, options, arguments))
            if script.error is not None:
                raise script.error

        def disable_fallback(self) -> None:
            script.fallback_disabled += 1

        def get_providers(self) -> list[str]:
            asked = script.opened[-1][2]["providers"]
            return [p for p in asked if p in script.starts] or ["CPUExecutionProvider"]

    fake.InferenceSession = InferenceSession  # type: ignore[attr-defined]
    fake.SessionOptions = SessionOptions  # type: ignore[attr-defined]
    fake.GraphOptimizationLevel = SimpleNamespace(ORT_DISABLE_ALL=0)  # type: ignore[attr-defined]
    fake.get_available_providers = lambda: list(script.available)  # type: ignore[attr-defined]
    return fake
