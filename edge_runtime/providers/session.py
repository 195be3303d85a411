"""Opening a graph as an onnxruntime session, with the provider that was asked for or an error.

Knows providers and session options; knows no cache and no tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_runtime.errors import ProviderError
from edge_runtime.providers.ort import first_line, onnxruntime
from edge_runtime.providers.threads import ThreadPlan

CPU_PROVIDER = "CPUExecutionProvider"


@dataclass(frozen=True)
class SessionOptions:
    """How to open a session; ``provider`` is onnxruntime's own name."""

    threads: ThreadPlan
    provider: str = CPU_PROVIDER


def open_session(graph: Path, options: SessionOptions) -> Any:
    """An ``onnxruntime.InferenceSession`` on exactly the provider asked for.

    onnxruntime falls back to the CPU in silence when a provider does not start; here that is an
    error.

    Raises:
        ProviderError: the provider is not in this build, did not start, or refused the graph.
    """
    ort = onnxruntime()
    available = ort.get_available_providers()
    if options.provider not in available:
        raise ProviderError(
            f"{options.provider} is not in this onnxruntime {ort.__version__}",
            hint=f"it has {', '.join(available)}",
        )
    try:
        session = ort.InferenceSession(
            str(graph),
            _session_options(ort, options.threads),
            providers=[options.provider],
            # Otherwise it prints a banner to standard output and tries the CPU.
            enable_fallback=0,
        )
    except Exception as exc:  # onnxruntime raises many kinds that share no base
        raise ProviderError(
            f"{options.provider} did not open {graph}: {first_line(exc)}",
            hint="the graph may need a newer onnxruntime than " + ort.__version__,
        ) from exc
    session.disable_fallback()  # for a failing run, too
    if options.provider not in session.get_providers():
        raise ProviderError(f"{options.provider} did not start; onnxruntime fell back to the CPU")
    return session


def _session_options(ort: Any, threads: ThreadPlan) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads.count
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # The exporter writes the fused operators itself: the optimizer finds nothing left to change, and
    # looking takes a fifth of the time to open a session.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    # Every step has other shapes, so a recorded pattern of allocations would not repeat.
    options.enable_mem_pattern = False
    if threads.processors[1:]:
        # The pool has one thread fewer than it uses: the caller's own works too. Processors count
        # from 1 here.
        places = ";".join(str(p + 1) for p in threads.processors[1:])
        options.add_session_config_entry("session.intra_op_thread_affinities", places)
    return options
