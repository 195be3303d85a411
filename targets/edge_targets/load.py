"""The profiles that ship with this version, one of a user's own, and the one of a machine.

Knows where profiles are; asks no machine: what it is comes from the caller.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from edge_runtime.errors import TargetError, UnknownTargetError
from edge_runtime.near_names import near_names
from edge_runtime.typed_data import DataError, decode
from edge_targets.profile import Match, TargetProfile

AUTO = "auto"
_FOLDER = Path(__file__).parent / "profiles"


@dataclass(frozen=True)
class MachineTraits:
    """What decides which profile is a machine's own; see :class:`edge_targets.profile.Match`."""

    system: str
    architecture: str
    board: str | None
    vendors: tuple[str, ...]
    battery: bool


@cache
def all_targets() -> Mapping[str, TargetProfile]:
    """Every profile by its name, in their order."""
    found = {file.stem: read_target(file) for file in _FOLDER.glob("*.toml")}
    return dict(sorted(found.items(), key=lambda item: item[1].order))


def find_target(name: str) -> tuple[str, TargetProfile]:
    """A profile by its name, or read from a user's own ``.toml`` file.

    Raises:
        UnknownTargetError: there is none; the hint has near names.
        TargetError: the file cannot be read, or something in it has the wrong type.
    """
    if name.endswith(".toml"):
        return Path(name).stem, read_target(Path(name))
    targets = all_targets()
    if name.lower() in targets:
        return name.lower(), targets[name.lower()]
    near = near_names(name, [*targets, AUTO])
    raise UnknownTargetError(
        f"no target is called {name!r}",
        hint=f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(targets)}",
    )


def target_of(machine: MachineTraits) -> tuple[str, TargetProfile]:
    """The first profile that is for this machine.

    Raises:
        UnknownTargetError: none is.
    """
    for name, target in all_targets().items():
        if target.match is not None and _fits(target.match, machine):
            return name, target
    raise UnknownTargetError(
        f"no target is for this machine ({machine.system} on {machine.architecture})",
        hint="choose one of: edge-runtime targets, or give a .toml file of your own",
    )


def read_target(file: Path) -> TargetProfile:
    """Read one profile.

    Raises:
        TargetError: it cannot be read, is no TOML, or something in it is missing or wrong.
    """
    # The standard library reads TOML from 3.11 on; tomli is the same code for 3.10.
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        return decode(TargetProfile, toml.loads(file.read_text(encoding="utf-8")))
    except OSError as exc:
        raise TargetError(f"{file}: cannot be read: {exc.strerror or exc}") from exc
    except DataError as exc:
        raise TargetError(f"{file}: {exc}") from exc
    except ValueError as exc:  # no UTF-8, no TOML, or a value out of its range
        raise TargetError(f"{file}: {' '.join(str(exc).split())}") from exc


def _fits(match: Match, machine: MachineTraits) -> bool:
    return (
        (not match.systems or machine.system in match.systems)
        and (not match.architectures or machine.architecture in match.architectures)
        and (match.board is None or match.board.lower() in (machine.board or "").lower())
        and (not match.vendors or any(v in match.vendors for v in machine.vendors))
        and (match.battery is None or match.battery == machine.battery)
    )
