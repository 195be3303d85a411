"""Whether a provider can be used here: in the build, as a plugin with a device, or why not.

Every refusal carries a cure that fits this machine: no driver is recommended to a computer without
the device. Knows no graph.
"""

from __future__ import annotations

from typing import Any

from edge_runtime.errors import ProviderError
from edge_runtime.providers.catalog import Provider
from edge_runtime.providers.facts import Facts
from edge_runtime.providers.machine import Machine
from edge_runtime.providers.plugins import device_kind, offered_devices

_ON_CPU = "--provider cpu runs without it"
_KINDS = ("gpu", "npu", "cpu")  # of several devices that a plugin offers, the first of these


def devices_for(ort: Any, provider: Provider, facts: Facts | None = None) -> list[Any] | None:
    """The way to a provider.

    Args:
        ort: the onnxruntime module.
        provider: one of the catalog.
        facts: how to ask this machine; None asks the real one.

    Returns:
        None where it is in the build; otherwise the one ``OrtEpDevice`` of its plugin to use.

    Raises:
        ProviderError: it is in neither, its plugin is broken, or offers no device here.
    """
    facts = facts or Facts()
    if provider.name in ort.get_available_providers():
        return None
    plugin = provider.plugin
    if plugin is None or facts.find_plugin(plugin) is None:
        raise ProviderError(
            f"{provider.name} is not in this onnxruntime {ort.__version__}"
            + (", and its plugin is not installed" if plugin else ""),
            hint=how_to_bring(provider, facts.machine()),
        )
    devices = offered_devices(ort, provider, facts.find_plugin)
    if not devices:
        raise ProviderError(
            f"the plugin of {provider.name} loads and offers no device on this machine",
            hint=_why_no_device(provider, facts.machine()),
        )
    return [min(devices, key=lambda device: _KINDS.index(device_kind(device)))]


def how_to_bring(provider: Provider, machine: Machine) -> str:
    """What to do to have a provider, or why it cannot be had on this machine."""
    if machine.system not in provider.systems:
        return f"{provider.title} exists for {', '.join(provider.systems)} only; {_ON_CPU}"
    if not has_device(provider, machine):
        return f"this machine has no {_device(provider)} for it; {_ON_CPU}"
    if machine.is_jetson and "nvidia" in provider.vendors:
        return "install the onnxruntime-gpu wheel that is made for this board's JetPack"
    return provider.install


def has_device(provider: Provider, machine: Machine) -> bool:
    """Whether the kernel shows a device of the provider's kind and maker.

    True where it cannot tell: on a system without /sys, and for what is part of an ARM chip, which
    is on no bus that lists it.
    """
    if "cpu" in provider.devices or machine.system in ("windows", "android"):
        return True
    on_chip = not provider.vendors or "qualcomm" in provider.vendors
    if machine.architecture == "aarch64" and machine.system == "linux" and on_chip:
        return True
    kinds = {
        a.kind for a in machine.accelerators if not provider.vendors or a.vendor in provider.vendors
    }
    return bool(kinds & set(provider.devices))


def _why_no_device(provider: Provider, machine: Machine) -> str:
    if has_device(provider, machine):
        return f"update the driver of the {_device(provider)}, or: {_ON_CPU}"
    return f"this machine has no {_device(provider)} for it; {_ON_CPU}"


def _device(provider: Provider) -> str:
    vendors = {"nvidia": "NVIDIA", "amd": "AMD"}
    makers = " or ".join(vendors.get(v, v.capitalize()) for v in provider.vendors)
    kinds = " or ".join(kind.upper() for kind in provider.devices)
    return f"{makers} {kinds}".strip()
