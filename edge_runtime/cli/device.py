"""Which device a command is to run for: `--target` and `--provider`, and what they come to.

Composes profiles, the machine's facts and the engine's options; opens no model. Without either
argument it asks nothing and imports nothing.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edge_runtime.errors import InvalidParameterError

if TYPE_CHECKING:
    from edge_targets.profile import TargetProfile

    from edge_runtime.engine.engine import Engine
    from edge_runtime.providers.machine import Machine


@dataclass(frozen=True)
class DeviceDefaults:
    """What a target says where the command line is silent; None where it says nothing.

    Args:
        target: its name.
        providers: to try in this order.
        chunk_size, slots, threads, memory_cap_bytes: as
            :class:`edge_runtime.engine.options.EngineOptions`.
    """

    target: str | None = None
    providers: tuple[str, ...] = ()
    chunk_size: int | None = None
    slots: int | None = None
    threads: int | None = None
    memory_cap_bytes: int | None = None

    def fill(self, **asked: Any) -> dict[str, Any]:
        """``asked`` with what is None in it taken from here, and left out where that is None."""
        filled = {
            name: getattr(self, name, None) if value is None else value
            for name, value in asked.items()
        }
        return {name: value for name, value in filled.items() if value is not None}


def add_device_arguments(parser: argparse._ActionsContainer) -> None:
    """Add `--target` and `--provider`."""
    parser.add_argument(
        "--target",
        metavar="NAME",
        help="run as this device wants (edge-runtime targets); auto is this machine's own",
    )
    parser.add_argument(
        "--provider",
        metavar="NAME[,NAME...]",
        help="execution provider: one alone is taken or refused, several are tried in order "
        "(edge-runtime doctor)",
    )


def device_defaults(arguments: argparse.Namespace) -> DeviceDefaults:
    """What the two arguments come to.

    Raises:
        UnknownTargetError, TargetError: no such profile, or one that cannot be read.
        InvalidParameterError: an empty `--provider`.
    """
    asked = None if arguments.provider is None else split_providers(arguments.provider)
    if arguments.target is None:
        return DeviceDefaults(providers=asked or ())
    from edge_runtime.providers.facts import Facts

    machine = Facts().machine()
    name, profile = chosen_target(arguments.target, machine)
    return defaults_of(name, profile, machine, asked)


def defaults_of(
    name: str,
    profile: TargetProfile,
    machine: Machine,
    asked: tuple[str, ...] | None,
) -> DeviceDefaults:
    """A profile's rules applied to a machine.

    Args:
        name: the profile's.
        profile: the rules.
        machine: gives the memory that the cap is a share of.
        asked: providers from the command line, which win.
    """
    from edge_runtime.providers.threads import plan_threads

    cap = None
    # A cap is kept where the system tells what is resident.
    if profile.memory_share is not None and machine.memory_bytes and machine.system == "linux":
        cap = int(profile.memory_share * machine.memory_bytes)
    most = profile.most_threads
    return DeviceDefaults(
        target=name,
        providers=asked or profile.provider_texts,
        chunk_size=profile.chunk,
        slots=profile.slots,
        threads=None if most is None else min(most, plan_threads().count),
        memory_cap_bytes=cap,
    )


def chosen_target(name: str, machine: Machine) -> tuple[str, TargetProfile]:
    """The profile called so; ``auto`` is the machine's.

    Raises:
        UnknownTargetError, TargetError: there is none, or it cannot be read.
    """
    from edge_targets.load import AUTO, MachineTraits, find_target, target_of

    if name.lower() != AUTO:
        return find_target(name)
    return target_of(
        MachineTraits(
            machine.system,
            machine.architecture,
            machine.board,
            tuple(a.vendor for a in machine.accelerators),
            machine.battery,
        )
    )


def split_providers(text: str) -> tuple[str, ...]:
    """``cuda,cpu`` as two names.

    Raises:
        InvalidParameterError: a name is missing.
    """
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise InvalidParameterError(
            f"--provider is {text!r}", hint="give one name, or several with commas between"
        )
    return names


@contextmanager
def provider_steps_shown() -> Iterator[None]:
    """Around loading: what was tried before the provider that runs becomes lines on stderr."""
    from edge_runtime.providers.select import ProviderWarning

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ProviderWarning)
        yield
    for warning in caught:
        if issubclass(warning.category, ProviderWarning):
            print(f"warning: {warning.message}", file=sys.stderr)
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )


def provider_line(engine: Engine) -> str | None:
    """What ran the model, for people; None where nobody knows."""
    report = engine.provider
    if report is None:
        return None
    taken = "" if report.assignment is None else f", {report.assignment}"
    return f"{report.provider}{taken}"
