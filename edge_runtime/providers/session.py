"""Opening a graph as an onnxruntime session, with the provider that was asked for or an error.

Knows providers and session options; knows no cache and no tokens.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_runtime.errors import ProviderError
from edge_runtime.providers.catalog import CPU_PROVIDER
from edge_runtime.providers.ort import first_line, onnxruntime
from edge_runtime.providers.threads import ThreadPlan

if TYPE_CHECKING:
    from edge_runtime.providers.assignment import Assignment
    from edge_runtime.providers.facts import Facts


__all__ = ["CPU_PROVIDER", "OpenedSession", "SessionOptions", "open_session", "require_provider"]


@dataclass(frozen=True)
class SessionOptions:
    """How to open a session.

    Args:
        threads: of the session, and of the provider where it has a pool of its own.
        provider: onnxruntime's own name.
        provider_options: the provider's own, as onnxruntime names them.
        optimize: let onnxruntime rewrite the graph; the fused dialect has nothing to rewrite.
    """

    threads: ThreadPlan
    provider: str = CPU_PROVIDER
    provider_options: tuple[tuple[str, str], ...] = ()
    optimize: bool = False


@dataclass(frozen=True)
class OpenedSession:
    """A session, and what its provider took of the graph; None where that is the CPU's: all."""

    ort_session: Any
    assignment: Assignment | None = None


def open_session(graph: Path, options: SessionOptions, facts: Facts | None = None) -> OpenedSession:
    """Open a graph on exactly the provider asked for.

    onnxruntime falls back to the CPU in silence when a provider does not start; here that is an
    error. So is a provider that starts and leaves most of the work to the CPU.

    Args:
        graph: the ONNX file.
        options: provider and threads.
        facts: how to ask this machine about other providers than the CPU; None asks the real one.

    Raises:
        ProviderError: the provider is not in this build, did not start, refused the graph, or took
            too little of it.
    """
    ort = onnxruntime()
    if options.provider != CPU_PROVIDER:
        return _open_on_other(ort, graph, options, facts)
    available = ort.get_available_providers()
    if options.provider not in available:
        raise ProviderError(
            f"{options.provider} is not in this onnxruntime {ort.__version__}",
            hint=f"it has {', '.join(available)}",
        )
    session = _open(ort, graph, options, _session_options(ort, options), providers=[CPU_PROVIDER])
    return OpenedSession(session)


def require_provider(name: str, facts: Facts | None = None) -> None:
    """Refuse a provider that onnxruntime or this machine does not have.

    Raises:
        ProviderError: it is not in this build and no plugin offers a device for it.
    """
    if name != CPU_PROVIDER:
        from edge_runtime.providers.availability import devices_for
        from edge_runtime.providers.catalog import load_providers

        devices_for(onnxruntime(), load_providers().find(name), facts)


def _open_on_other(
    ort: Any, graph: Path, options: SessionOptions, facts: Facts | None
) -> OpenedSession:
    # None of this is on the way to a plain CPU session.
    from edge_runtime.providers import assignment
    from edge_runtime.providers.availability import devices_for
    from edge_runtime.providers.catalog import load_providers
    from edge_runtime.providers.facts import Facts

    facts = facts or Facts()
    provider = load_providers().find(options.provider)
    chosen = dict(options.provider_options)
    if provider.options.threads:
        chosen.setdefault(provider.options.threads, str(options.threads.count))
    devices = devices_for(ort, provider, facts)
    settings = _session_options(ort, options)
    with ExitStack() as stack:
        if assignment.tells_assignment(ort):
            settings.add_session_config_entry(assignment.RECORD_ENTRY, "1")
        else:
            folder, settings.profile_file_prefix = assignment.profile_prefix()
            stack.enter_context(folder)
            settings.enable_profiling = True
        if devices is None:
            built_in = {"providers": [provider.name], "provider_options": [chosen]}
            try:
                session = _open(ort, graph, options, settings, **built_in)
            except ProviderError as exc:
                missing = facts.missing_libraries(provider)
                if not missing:
                    raise
                raise ProviderError(
                    f"{exc.message}: {', '.join(missing)} cannot be loaded", hint=provider.install
                ) from exc
        else:
            try:
                settings.add_provider_for_devices(devices, chosen)
            except Exception as exc:  # an option of the wrong kind, for one
                raise ProviderError(f"{provider.name}: {first_line(exc)}") from exc
            session = _open(ort, graph, options, settings)
        if assignment.tells_assignment(ort):
            found = assignment.told_assignment(session, provider.name)
        else:
            found = assignment.profiled_assignment(session, provider.name, graph)
    if not found.does_the_work:
        left = ", ".join(f"{count} {name}" for name, count in found.elsewhere[:3])
        raise ProviderError(
            f"{provider.name} took only {found} of {graph.name}",
            hint=f"it left {left} and more to the CPU, which alone is faster: --provider cpu, "
            "or export a graph made for it (edge-runtime targets)",
        )
    return OpenedSession(session, found)


def _open(ort: Any, graph: Path, options: SessionOptions, settings: Any, **providers: Any) -> Any:
    try:
        session = ort.InferenceSession(
            str(graph),
            settings,
            # Otherwise it prints a banner to standard output and tries the CPU.
            enable_fallback=0,
            **providers,
        )
    except Exception as exc:  # onnxruntime raises many kinds that share no base
        raise ProviderError(
            f"{options.provider} did not open {graph}: {first_line(exc)}",
            hint="the graph may need a newer onnxruntime than " + ort.__version__,
        ) from exc
    session.disable_fallback()  # for a failing run, too
    if options.provider not in session.get_providers():
        raise ProviderError(
            f"{options.provider} did not start; onnxruntime fell back to the CPU",
            hint="edge-runtime doctor shows what it needs and what is missing",
        )
    return session


def _session_options(ort: Any, chosen: SessionOptions) -> Any:
    threads = chosen.threads
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads.count
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # The exporter writes the fused operators itself: the optimizer finds nothing left to change, and
    # looking takes a fifth of the time to open a session.
    if not chosen.optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    # Every step has other shapes, so a recorded pattern of allocations would not repeat.
    options.enable_mem_pattern = False
    if threads.processors[1:]:
        # The pool has one thread fewer than it uses: the caller's own works too. Processors count
        # from 1 here.
        places = ";".join(str(p + 1) for p in threads.processors[1:])
        options.add_session_config_entry("session.intra_op_thread_affinities", places)
    return options
