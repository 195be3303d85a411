"""A stand-in for the onnxruntime module, which answers as its script says.

Knows what the real one was seen to do: providers in its build, plugins that offer devices or none,
errors and silent fallbacks, and where nodes went, told or only profiled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

Nodes = Mapping[str, Sequence[str]]
"""Provider -> the operators of the nodes that went to it."""


@dataclass
class Script:
    """What the module is to do, and what was asked of it.

    Args:
        version: its own.
        available: providers in the build.
        starts: providers that a session really gets.
        error: raised by every session.
        errors: raised by sessions on one provider.
        plugins: library -> what it offers, as (provider, kind of device).
        nodes: where the graph's nodes go; None for a version that cannot tell, which then writes
            ``profiled`` as a profile.
        step_error: raised by a run.
    """

    version: str = "1.23.2"
    available: tuple[str, ...] = ("CPUExecutionProvider",)
    starts: tuple[str, ...] = ("CPUExecutionProvider",)
    error: Exception | None = None
    errors: Mapping[str, Exception] = field(default_factory=dict)
    plugins: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    nodes: Nodes | None = None
    profiled: Nodes = field(default_factory=dict)
    step_error: Exception | None = None
    opened: list[tuple[str, Any, dict[str, Any]]] = field(default_factory=list)
    registered: list[str] = field(default_factory=list)
    fallback_disabled: int = 0


class SessionOptions(SimpleNamespace):
    def __init__(self) -> None:
        super().__init__(entries={}, devices=None, device_options=None)

    def add_session_config_entry(self, key: str, value: str) -> None:
        self.entries[key] = value

    def add_provider_for_devices(self, devices: list[Any], options: dict[str, str]) -> None:
        self.devices, self.device_options = devices, options


def module(script: Script) -> ModuleType:
    """The module."""
    fake = ModuleType("onnxruntime")
    fake.__version__ = script.version  # type: ignore[attr-defined]

    class InferenceSession:
        def __init__(self, path: str, options: Any, **arguments: Any) -> None:
            script.opened.append((path, options, arguments))
            self.asked = arguments.get("providers") or [d.ep_name for d in options.devices]
            self.options = options
            if script.error is not None:
                raise script.error
            if self.asked[0] in script.errors:
                raise script.errors[self.asked[0]]

        def disable_fallback(self) -> None:
            script.fallback_disabled += 1

        def get_providers(self) -> list[str]:
            return [p for p in self.asked if p in script.starts] or ["CPUExecutionProvider"]

        def get_inputs(self) -> list[Any]:
            return [SimpleNamespace(name="input_ids", type="tensor(int64)", shape=["B", "S"])]

        def run(self, names: None, feeds: dict[str, Any]) -> None:
            assert feeds["input_ids"].shape == (1, 1)
            if script.step_error is not None:
                raise script.step_error

        def end_profiling(self) -> str:
            assert self.options.enable_profiling
            file = Path(self.options.profile_file_prefix + "_1.json")
            events = [
                {
                    "cat": "Node",
                    "name": f"{name}_{i}_kernel_time",
                    "args": {"op_name": name, "provider": provider, "node_index": str(i)},
                }
                for provider, names in script.profiled.items()
                for i, name in enumerate(names)
            ]
            file.write_text(json.dumps([{"cat": "Session", "name": "run"}, *events, *events]))
            return str(file)

    def told(self: InferenceSession) -> list[Any]:
        assert self.options.entries["session.record_ep_graph_assignment_info"] == "1"
        return [
            SimpleNamespace(
                ep_name=provider,
                get_nodes=lambda names=names: [SimpleNamespace(op_type=name) for name in names],
            )
            for provider, names in (script.nodes or {}).items()
        ]

    def register(name: str, library: str) -> None:
        if library not in script.plugins:
            raise RuntimeError(f"Failed to load library {library} with error: no such file")
        script.registered.append(library)

    def devices() -> list[Any]:
        return [
            SimpleNamespace(
                ep_name=name, device=SimpleNamespace(type=f"OrtHardwareDeviceType.{kind.upper()}")
            )
            for library in script.registered
            for name, kind in script.plugins[library]
        ]

    if script.nodes is not None:
        InferenceSession.get_provider_graph_assignment_info = told  # type: ignore[attr-defined]
    fake.InferenceSession = InferenceSession  # type: ignore[attr-defined]
    fake.SessionOptions = SessionOptions  # type: ignore[attr-defined]
    fake.GraphOptimizationLevel = SimpleNamespace(ORT_DISABLE_ALL=0)  # type: ignore[attr-defined]
    fake.get_available_providers = lambda: list(script.available)  # type: ignore[attr-defined]
    fake.register_execution_provider_library = register  # type: ignore[attr-defined]
    fake.get_ep_devices = devices  # type: ignore[attr-defined]
    return fake
