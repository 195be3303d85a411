"""A device profile: what a kind of device wants of an export and of the runtime.

Plain values with their checks; knows no file and asks no machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_CHOICES = {
    "dialect": ("fused", "portable"),
    "precision": ("float32", "float16"),
    "recipe": ("auto", "int8", "int4"),
    "cache": ("float32", "float16", "int8"),
}


@dataclass(frozen=True)
class ProviderChoice:
    """One provider to try, by onnxruntime's name, with its options by onnxruntime's keys."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Match:
    """Which machines a profile is for; an empty field fits any.

    Args:
        systems: ``linux``, ``windows``, ``darwin``, ``android``.
        architectures: ``x86_64``, ``aarch64``.
        board: a part of the board's name.
        vendors: makers of an accelerator that must be there.
        battery: whether the machine has one.
    """

    systems: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    board: str | None = None
    vendors: tuple[str, ...] = ()
    battery: bool | None = None


@dataclass(frozen=True)
class TargetProfile:
    """What a kind of device wants.

    Args:
        title: the device, for people.
        order: of several that match a machine the smallest is taken.
        providers: to try in this order.
        dialect: of the graph that the first provider wants: ``fused`` or ``portable``.
        precision: of that graph's activations.
        static_shapes: that provider wants every dimension fixed.
        recipe: how weights are stored.
        cache: type of the key-value cache.
        chunk: most prompt tokens in a step.
        slots: sequences at a time.
        capacity: rows of the cache in a graph of fixed shapes; None where shapes are open.
        oldest_onnxruntime: that the graphs and providers need.
        memory_share: of the machine's memory, most that a model may take; None for no cap.
        most_threads: bound on the threads that fast cores and quota give; None for no bound.
        match: machines that it is for; None for those that this program cannot run on itself.
        note: what else to know.

    Raises:
        ValueError: a value outside of its choices or range.
    """

    title: str
    order: int
    providers: tuple[ProviderChoice, ...]
    dialect: str
    precision: str
    static_shapes: bool
    recipe: str
    cache: str
    chunk: int
    slots: int
    oldest_onnxruntime: str
    capacity: int | None = None
    memory_share: float | None = None
    most_threads: int | None = None
    match: Match | None = None
    note: str | None = None

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}; it must be {' or '.join(choices)}"
                )
        for name in ("chunk", "slots", "most_threads", "capacity"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be 1 or more")
        if self.memory_share is not None and not 0 < self.memory_share <= 1:
            raise ValueError(f"memory_share is {self.memory_share}; it must be above 0 and up to 1")
        if self.static_shapes != (self.capacity is not None):
            raise ValueError("capacity must be there where static_shapes is true, and only there")
        if not self.providers:
            raise ValueError("providers is empty")
        for text in self.oldest_onnxruntime.split("."):
            if not text.isdigit():
                raise ValueError(f"oldest_onnxruntime is {self.oldest_onnxruntime!r}, no version")

    @property
    def provider_texts(self) -> tuple[str, ...]:
        """The providers as a command line has them: ``NAME:OPTION=VALUE``."""
        return tuple(
            ":".join([choice.name, *(f"{k}={v}" for k, v in choice.options.items())])
            for choice in self.providers
        )
