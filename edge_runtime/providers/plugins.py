"""Providers that come as a library of their own: finding it, registering it, what it offers.

Registering loads foreign code, so it is done for a provider that was asked for, and never on the
way to a plain CPU session. Knows onnxruntime's plugin calls; knows no graph.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_runtime.errors import ProviderError
from edge_runtime.providers.catalog import Package, Provider
from edge_runtime.providers.ort import first_line


@dataclass(frozen=True)
class PluginLibrary:
    """A plugin package that is installed.

    Args:
        version: the package's.
        path: its library; None where it has none, for the ``problem``.
        problem: why there is no library.
    """

    version: str | None
    path: Path | None
    problem: str | None = None


def find_plugin(package: Package) -> PluginLibrary | None:
    """The library that a plugin package brings; None where the package is not installed."""
    try:
        if importlib.util.find_spec(package.module) is None:
            return None
        module = importlib.import_module(package.module)
        path = Path(module.get_library_path())
    except Exception as exc:  # a broken package can raise anything
        return PluginLibrary(_version(package), None, first_line(exc))
    if not path.is_file():
        return PluginLibrary(_version(package), None, f"{path} does not exist")
    return PluginLibrary(_version(package), path)


def offered_devices(
    ort: Any,
    provider: Provider,
    find: Callable[[Package], PluginLibrary | None] = find_plugin,
) -> list[Any]:
    """The devices that a provider's plugin offers here, registering it first.

    Args:
        ort: the onnxruntime module.
        provider: one of the catalog.
        find: finds the package.

    Returns:
        ``OrtEpDevice`` objects; empty where the plugin runs and sees no device that it can use.

    Raises:
        ProviderError: there is no such plugin here, or it does not load.
    """
    package = provider.plugin
    library = None if package is None else find(package)
    if package is None or library is None:
        raise ProviderError(
            f"{provider.name} is not in this onnxruntime {ort.__version__}, and no plugin for it "
            "is installed",
            hint=f"{provider.install} (or --provider cpu)",
        )
    if library.path is None:
        raise ProviderError(
            f"the plugin of {provider.name} is broken: {library.problem}",
            hint=f"pip install --force-reinstall {package.requirement}",
        )
    if not hasattr(ort, "register_execution_provider_library"):
        raise ProviderError(
            f"onnxruntime {ort.__version__} takes no plugins",
            hint="pip install --upgrade onnxruntime",
        )
    try:
        if not _devices(ort, provider):
            ort.register_execution_provider_library(provider.short_name, str(library.path))
    except Exception as exc:  # onnxruntime raises many kinds that share no base
        if "already registered" not in str(exc):
            raise ProviderError(
                f"the plugin of {provider.name} does not load: {first_line(exc)}",
                hint=f"pip install --upgrade {package.requirement} onnxruntime",
            ) from exc
    return _devices(ort, provider)


def _devices(ort: Any, provider: Provider) -> list[Any]:
    return [device for device in ort.get_ep_devices() if device.ep_name == provider.name]


def device_kind(device: Any) -> str:
    """``cpu``, ``gpu`` or ``npu`` of an ``OrtEpDevice``."""
    return str(device.device.type).rpartition(".")[2].lower()


def _version(package: Package) -> str | None:
    try:
        return importlib.metadata.version(package.requirement)
    except importlib.metadata.PackageNotFoundError:
        return None
