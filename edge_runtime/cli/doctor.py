"""Show what this machine can run models on: providers, what is missing, and what each model gets."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass

from edge_runtime.bundle import read_manifest
from edge_runtime.cli.device import chosen_target
from edge_runtime.cli.tables import pairs, table
from edge_runtime.errors import ManifestError, UnknownTargetError
from edge_runtime.providers.machine import Machine
from edge_runtime.providers.probe import Diagnosis, Foreseen, diagnose, foresee
from edge_runtime.store.contents import StoredKind, list_models
from edge_runtime.store.progress import format_bytes
from edge_runtime.typed_data import encode


@dataclass(frozen=True)
class ModelOutlook:
    """A bundle of the store, and the provider that it would get."""

    model: str
    recipe: str | None
    outlook: Foreseen


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--json", action="store_true", help="print it as JSON, sizes in bytes")


def run(arguments: argparse.Namespace) -> int:
    """Ask everything and print it; exit code 1 where no onnxruntime can be used."""
    found = diagnose()
    target = _target(found.machine)
    models = _models(found)
    if arguments.json:
        plain = encode(found) | {"target": target, "models": encode(models)}
        print(json.dumps(plain, indent=2, ensure_ascii=False))
    else:
        print(_as_text(found, target, models))
    return 0 if found.onnxruntime else 1


def _target(machine: Machine) -> str | None:
    try:
        return chosen_target("auto", machine)[0]
    except UnknownTargetError:
        return None


def _models(found: Diagnosis) -> list[ModelOutlook]:
    outlooks = []
    for model in list_models():
        if model.kind is not StoredKind.BUNDLE:
            continue
        try:
            outlook = foresee(read_manifest(model.path).graphs, found)
        except ManifestError as exc:
            outlook = Foreseen(None, None, exc.message)
        outlooks.append(ModelOutlook(model.name, model.recipe, outlook))
    return outlooks


def _as_text(found: Diagnosis, target: str | None, models: list[ModelOutlook]) -> str:
    machine = found.machine
    facts = [
        (
            "machine",
            f"{machine.system} on {machine.architecture}, {machine.board or 'no board name'}",
        ),
        ("processor", machine.cpu or "unknown"),
        (
            "memory",
            "unknown" if machine.memory_bytes is None else format_bytes(machine.memory_bytes),
        ),
    ]
    for device in machine.accelerators:
        size = "" if device.memory_bytes is None else f", {format_bytes(device.memory_bytes)}"
        shared = ", shares the CPU's memory" if device.shares_memory else ""
        facts.append((device.kind.upper(), f"{device.name}{size}{shared}"))
    facts.append(("target", target or "none fits: edge-runtime targets"))
    if found.onnxruntime is None:
        facts += [("onnxruntime", found.problem or "none"), ("to fix", found.problem_cure or "-")]
    else:
        told = "tells" if found.tells_assignment else "does not tell (a step is profiled)"
        facts.append(("onnxruntime", f"{found.onnxruntime}; {told} which nodes a provider took"))
    rows = [
        [state.short_name, state.state.value, state.detail, state.cure or ""]
        for state in found.providers
    ]
    text = f"{pairs(facts)}\n\n{table(['PROVIDER', 'STATE', 'WHY', 'TO HAVE IT'], rows)}"
    if models:
        lines = [
            [m.model, m.recipe or "-", m.outlook.provider or "none", m.outlook.reason]
            for m in models
        ]
        text += f"\n\n{table(['MODEL', 'RECIPE', 'WOULD RUN ON', 'WHY'], lines)}"
    return text
