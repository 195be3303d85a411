"""Which provider runs a bundle: those that were asked for, tried in order until one really does.

Never silent: each that did not run is a step down, with the reason and the cure. One provider asked
for alone is taken or it is an error. Knows graphs by their manifest entries; opens none itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from edge_runtime.bundle import GraphEntry
from edge_runtime.errors import InvalidParameterError, ProviderError
from edge_runtime.providers.catalog import CPU_PROVIDER, load_providers, other_than_cpu

if TYPE_CHECKING:
    from edge_runtime.providers.assignment import Assignment

T = TypeVar("T")


class ProviderWarning(UserWarning):
    """A provider that was preferred does not run here, and another one does."""


@dataclass(frozen=True)
class ProviderRequest:
    """A provider to try: onnxruntime's name, and its options as onnxruntime names them."""

    name: str
    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class StepDown:
    """A provider that was tried and does not run: why, and what would help."""

    provider: str
    reason: str
    cure: str | None = None

    def __str__(self) -> str:
        """One line for people."""
        return self.reason + (f" ({self.cure})" if self.cure else "")


@dataclass(frozen=True)
class Chosen(Generic[T]):
    """What runs.

    Args:
        opened: what the caller's function made of graph and provider.
        request: the provider.
        graph: the graph that was opened.
        reason: why this provider, for people.
        steps_down: those before it that do not run.
    """

    opened: T
    request: ProviderRequest
    graph: GraphEntry
    reason: str
    steps_down: tuple[StepDown, ...] = ()


@dataclass(frozen=True)
class ProviderReport:
    """Which provider runs a model here, and why.

    Args:
        provider: onnxruntime's name.
        graph: the bundle's graph that it runs.
        reason: for people.
        steps_down: what was tried before it.
        assignment: how much of the graph it took; None on the CPU, which runs all of it.
    """

    provider: str
    graph: GraphEntry
    reason: str
    steps_down: tuple[StepDown, ...] = ()
    assignment: Assignment | None = None


def parse_request(text: str) -> ProviderRequest:
    """``cuda``, ``CUDAExecutionProvider`` or ``openvino:device_type=GPU:cache_dir=x``.

    Raises:
        UnknownProviderError: no provider is called so.
        InvalidParameterError: an option without a value.
    """
    name, *pieces = text.split(":")
    provider = CPU_PROVIDER if name == "cpu" else load_providers().find(name).name
    options: list[tuple[str, str]] = []
    for piece in pieces:
        key, equals, value = piece.partition("=")
        if key and equals:
            options.append((key, value))
        elif options:  # a value may hold colons: C:\\path
            options[-1] = (options[-1][0], f"{options[-1][1]}:{piece}")
        else:
            raise InvalidParameterError(
                f"the provider {text!r} has an option without a value: {piece!r}",
                hint="write NAME:OPTION=VALUE, such as openvino:device_type=GPU",
            )
    return ProviderRequest(provider, tuple(options))


def requests_for(
    asked: Sequence[str], available: Sequence[str], graphs: Sequence[GraphEntry]
) -> tuple[ProviderRequest, ...]:
    """The providers to try.

    Args:
        asked: by the caller, in the order of preference; empty leaves it to what is here.
        available: what the onnxruntime has built in.
        graphs: of the bundle.

    Raises:
        UnknownProviderError, InvalidParameterError: as `parse_request`.
    """
    if asked:
        return tuple(parse_request(text) for text in asked)
    others = other_than_cpu(available)
    if not others:  # the plain build: nothing to weigh, and no catalog to read
        return (ProviderRequest(CPU_PROVIDER),)
    made_for = {name for graph in graphs for name in graph.providers}
    wanted = [
        ProviderRequest(provider.name)
        for provider in load_providers().providers
        if provider.automatic and provider.name in others and provider.name in made_for
    ]
    return (*wanted, ProviderRequest(CPU_PROVIDER))


def graph_for(
    graphs: Sequence[GraphEntry], provider: str, *, dialects: Sequence[str], where: str
) -> GraphEntry:
    """The graph that was made for a provider.

    Args:
        graphs: of the bundle.
        provider: onnxruntime's name.
        dialects: those that the caller can run.
        where: the bundle, for the message.

    Raises:
        ProviderError: there is none.
    """
    for graph in graphs:
        if provider in graph.providers and graph.dialect in dialects:
            return graph
    held = ", ".join(f"{g.dialect} for {' or '.join(g.providers) or 'none'}" for g in graphs)
    raise ProviderError(
        f"{where} has no graph for {provider}; it has {held}",
        hint="edge-runtime export MODEL --target TARGET makes one; edge-runtime targets lists "
        "which target has which provider",
    )


def first_that_runs(
    requests: Sequence[ProviderRequest],
    require_here: Callable[[str], None],
    find_graph: Callable[[str], GraphEntry],
    open_graph: Callable[[GraphEntry, ProviderRequest], T],
) -> Chosen[T]:
    """Try providers in order.

    Args:
        requests: what to try, the better first; one alone is taken or it is an error.
        require_here: ProviderError where onnxruntime or the machine has no such provider: there
            is then no use in another graph.
        find_graph: the bundle's graph for a provider; ProviderError where it has none.
        open_graph: opens it there; ProviderError where the provider does not really run it.

    Raises:
        ProviderError: none of them runs.
    """
    steps: list[StepDown] = []
    for request in requests:
        try:
            require_here(request.name)
            graph = find_graph(request.name)
            opened = open_graph(graph, request)
        except ProviderError as exc:
            if len(requests) == 1:
                raise
            steps.append(StepDown(request.name, exc.message, exc.hint))
            continue
        reason = "the only one asked for" if len(requests) == 1 else "the first that runs here"
        return Chosen(opened, request, graph, reason, tuple(steps))
    raise ProviderError(
        "no provider runs this model here: " + "; ".join(step.reason for step in steps),
        hint=next((step.cure for step in steps if step.cure), None),
    )
