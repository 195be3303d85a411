"""The execution providers that are known, read from catalog.toml.

Knows their names, what graph each wants, its option keys and the packages that bring it; knows
nothing of this machine (:mod:`edge_runtime.providers.probe` asks that).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from edge_runtime.errors import UnknownProviderError
from edge_runtime.near_names import near_names
from edge_runtime.typed_data import decode

CPU_PROVIDER = "CPUExecutionProvider"
# In every official build, and no provider of ours: it calls a service.
_NEVER = "AzureExecutionProvider"


@dataclass(frozen=True)
class OptionKeys:
    """onnxruntime's names of a provider's options; None where it has no such option."""

    memory_limit: str | None = None
    engine_cache: str | None = None
    device: str | None = None
    threads: str | None = None


@dataclass(frozen=True)
class Package:
    """What brings a provider.

    Args:
        kind: ``build`` is an onnxruntime that has it inside, ``plugin`` a library beside one.
        requirement: what to install, as the installer wants it.
        module: the Python module that shows it is there.
        installer: what installs it.
    """

    kind: str
    requirement: str
    module: str
    installer: str = "pip"

    @property
    def install(self) -> str:
        """The command, or words where there is none."""
        if self.installer == "pip":
            return f"pip install {self.requirement}"
        return f"the {self.installer} package {self.requirement}, in an app"


@dataclass(frozen=True)
class Provider:
    """One execution provider.

    Args:
        name: onnxruntime's own.
        title: for people.
        short_names: what users write; the first is shown.
        devices: kinds that it runs on, of ``cpu``, ``gpu``, ``npu``.
        vendors: makers of those devices; empty for any.
        systems: operating systems that it exists for.
        dialects: graph dialects that it takes, the better first.
        precision: of the activations, in a graph made for it.
        static_shapes: it wants every dimension of the graph fixed.
        automatic: taken without being asked for.
        libraries: shared libraries that it loads; ``|`` separates versions that do as well.
    """

    name: str
    title: str
    short_names: tuple[str, ...]
    devices: tuple[str, ...]
    vendors: tuple[str, ...]
    systems: tuple[str, ...]
    dialects: tuple[str, ...]
    precision: str
    automatic: bool
    libraries: tuple[str, ...]
    options: OptionKeys
    packages: tuple[Package, ...]
    static_shapes: bool = False

    @property
    def short_name(self) -> str:
        """What users write."""
        return self.short_names[0]

    @property
    def plugin(self) -> Package | None:
        """The plugin package, where there is one."""
        return next((p for p in self.packages if p.kind == "plugin"), None)

    @property
    def install(self) -> str:
        """How to bring it."""
        return self.packages[0].install


@dataclass(frozen=True)
class ProviderCatalog:
    """All known providers, in the order of the file."""

    providers: tuple[Provider, ...]

    def find(self, name: str) -> Provider:
        """The provider called ``name`` (its own name or a short one), in any case.

        Raises:
            UnknownProviderError: there is none; the hint has near names.
        """
        wanted = name.strip().lower()
        for provider in self.providers:
            if wanted in (provider.name.lower(), *provider.short_names):
                return provider
        short = [name for provider in self.providers for name in provider.short_names]
        near = near_names(name, [*short, *(provider.name for provider in self.providers)])
        known = ", ".join(provider.short_name for provider in self.providers)
        raise UnknownProviderError(
            f"no execution provider is called {name!r}",
            hint=f"did you mean {' or '.join(near)}?" if near else f"known: {known}",
        )


@cache
def load_providers() -> ProviderCatalog:
    """The catalog that ships with this version."""
    # The standard library reads TOML from 3.11 on; tomli is the same code for 3.10.
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    text = (Path(__file__).parent / "catalog.toml").read_text(encoding="utf-8")
    return decode(ProviderCatalog, toml.loads(text))


def other_than_cpu(available: Sequence[str]) -> list[str]:
    """What a build offers beside the CPU: nothing in a plain one."""
    return [name for name in available if name not in (CPU_PROVIDER, _NEVER)]
