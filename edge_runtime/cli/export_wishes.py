"""What targets want of an export: a recipe, and graphs beside the fused one.

Composes profiles and the exporter's words; makes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edge_runtime.providers.catalog import CPU_PROVIDER
from edge_runtime.store.names import RECIPES, Recipe
from edge_runtime.store.resolve import exporter_required

if TYPE_CHECKING:
    from edge_export.portable_graphs import PortableRequest
    from edge_targets.profile import TargetProfile


@dataclass(frozen=True)
class ExportWishes:
    """The recipe of the first target, and the portable graphs of all; nothing without a target."""

    recipe: Recipe | None = None
    portable: tuple[PortableRequest, ...] = ()


def export_wishes(names: Sequence[str]) -> ExportWishes:
    """What targets want.

    Args:
        names: of profiles, or ``auto``.

    Raises:
        UnknownTargetError, TargetError: no such profile, or one that cannot be read.
        ExportError: the exporter is not installed.
    """
    if not names:
        return ExportWishes()
    from edge_runtime.cli.device import chosen_target
    from edge_runtime.providers.facts import Facts

    machine = Facts().machine()
    profiles = [chosen_target(name, machine)[1] for name in names]
    with exporter_required():
        portable = [_request(p) for p in profiles if p.dialect == "portable"]
    recipe = next((name for name in RECIPES if name == profiles[0].recipe), None)
    return ExportWishes(recipe, tuple(portable))


def _request(profile: TargetProfile) -> PortableRequest:
    from edge_export.portable_graphs import PortableRequest

    others = tuple(c.name for c in profile.providers if c.name != CPU_PROVIDER)
    static = profile.static_shapes
    return PortableRequest(
        others,
        half=profile.precision == "float16",
        chunk=profile.chunk if static else None,
        capacity=profile.capacity if static else None,
    )
