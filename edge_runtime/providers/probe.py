"""What this onnxruntime and this machine really have: the state of every known provider.

Registers plugins and loads system libraries to find out, so it is asked by `doctor` and not on the
way to a session. Opens no model; says of one what would be tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from edge_runtime.bundle import GraphEntry
from edge_runtime.errors import ProviderError
from edge_runtime.providers.assignment import tells_assignment
from edge_runtime.providers.availability import devices_for, has_device, how_to_bring
from edge_runtime.providers.catalog import CPU_PROVIDER, Provider, load_providers
from edge_runtime.providers.facts import Facts
from edge_runtime.providers.machine import Machine
from edge_runtime.providers.ort import onnxruntime
from edge_runtime.providers.plugins import device_kind
from edge_runtime.providers.select import requests_for


class State(str, Enum):
    """How far a provider is from running here."""

    READY = "ready"
    """In the build or a plugin, with its libraries and a device."""
    INCOMPLETE = "incomplete"
    """In the build, and a library that it loads is missing."""
    NO_DEVICE = "no device"
    """It is there, and has nothing to run on."""
    NOT_INSTALLED = "not installed"
    """It could run on this machine, and is in neither the build nor a plugin."""
    NOT_HERE = "not for this machine"
    """Another system's, or for a device that this machine does not have."""


@dataclass(frozen=True)
class ProviderState:
    """One provider on this machine.

    Args:
        name: onnxruntime's.
        short_name: what users write.
        state: how far it is from running.
        detail: where it is, or what is missing.
        cure: what brings it; None where nothing is wrong or nothing helps.
    """

    name: str
    short_name: str
    state: State
    detail: str
    cure: str | None = None


@dataclass(frozen=True)
class Diagnosis:
    """Machine, onnxruntime and providers.

    Args:
        machine: what it is.
        onnxruntime: its version; None where there is none that can be used.
        problem: why there is none.
        problem_cure: what would help.
        available: the providers of the build.
        tells_assignment: it says which node went to which provider.
        providers: every known one.
    """

    machine: Machine
    onnxruntime: str | None
    problem: str | None
    problem_cure: str | None
    available: tuple[str, ...]
    tells_assignment: bool
    providers: tuple[ProviderState, ...]


@dataclass(frozen=True)
class Foreseen:
    """The provider that a model would get, judged without opening it; None where there is none."""

    provider: str | None
    graph: str | None
    reason: str


def diagnose(facts: Facts | None = None) -> Diagnosis:
    """Ask onnxruntime, the loader and the kernel."""
    facts = facts or Facts()
    machine = facts.machine()
    ort, problem, cure = None, None, None
    try:
        ort = onnxruntime()
    except ProviderError as exc:
        problem, cure = exc.message, exc.hint
    known = load_providers().providers
    return Diagnosis(
        machine=machine,
        onnxruntime=None if ort is None else str(ort.__version__),
        problem=problem,
        problem_cure=cure,
        available=() if ort is None else tuple(ort.get_available_providers()),
        tells_assignment=ort is not None and tells_assignment(ort),
        providers=tuple(_state(ort, provider, facts, machine) for provider in known),
    )


def foresee(graphs: Sequence[GraphEntry], found: Diagnosis, asked: Sequence[str] = ()) -> Foreseen:
    """What would be tried first for a bundle, and why not what comes before.

    Args:
        graphs: of the bundle.
        found: this machine.
        asked: providers in the order of preference; empty is what happens unasked.
    """
    states = {state.name: state for state in found.providers}
    passed = []
    for request in requests_for(asked, found.available, graphs):
        state = states[request.name]
        graph = next((g for g in graphs if request.name in g.providers), None)
        if state.state is not State.READY:
            passed.append(f"{state.short_name}: {state.state.value}")
        elif graph is None:
            passed.append(f"{state.short_name}: no graph for it in the bundle")
        else:
            why = "; ".join(passed)
            if not why:
                plain = request.name == CPU_PROVIDER and not asked
                why = "nothing else in this onnxruntime" if plain else "first choice"
                if plain and len(found.available) > 1 and _others(found):
                    why = f"asked for by name only: {', '.join(_others(found))}"
            return Foreseen(request.name, graph.file, why)
    return Foreseen(None, None, "; ".join(passed))


def _others(found: Diagnosis) -> list[str]:
    return [
        state.short_name
        for state in found.providers
        if state.state is State.READY and state.name != CPU_PROVIDER
    ]


def _state(ort: Any, provider: Provider, facts: Facts, machine: Machine) -> ProviderState:
    def told(state: State, detail: str, cure: str | None = None) -> ProviderState:
        return ProviderState(provider.name, provider.short_name, state, detail, cure)

    installed = provider.plugin is not None and facts.find_plugin(provider.plugin) is not None
    built_in = ort is not None and provider.name in ort.get_available_providers()
    if not built_in and not installed:
        cure = how_to_bring(provider, machine)
        if machine.system not in provider.systems or not has_device(provider, machine):
            return told(State.NOT_HERE, cure.partition(";")[0])
        return told(State.NOT_INSTALLED, "in neither this onnxruntime nor a plugin", cure)
    if ort is None:
        return told(State.INCOMPLETE, "its plugin is here, and no onnxruntime")
    if built_in:
        missing = facts.missing_libraries(provider)
        if missing:
            cure = how_to_bring(provider, machine)
            return told(State.INCOMPLETE, f"{', '.join(missing)} cannot be loaded", cure)
        if not has_device(provider, machine):
            return told(State.NO_DEVICE, f"built in; {how_to_bring(provider, machine)}")
        return told(State.READY, "built in")
    try:
        (device,) = devices_for(ort, provider, facts) or [None]
    except ProviderError as exc:
        broken = "no device" not in exc.message
        return told(State.INCOMPLETE if broken else State.NO_DEVICE, exc.message, exc.hint)
    return told(State.READY, f"plugin, on the {device_kind(device).upper()}")
