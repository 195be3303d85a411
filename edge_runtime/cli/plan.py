"""Show how a memory cap would be split, from what this model really takes on this machine."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace

from edge_runtime.cli.device import device_defaults
from edge_runtime.cli.session import (
    add_model_argument,
    add_running_arguments,
    asked_cap,
    default_limit,
    open_engine,
)
from edge_runtime.cli.tables import pairs, table
from edge_runtime.engine.memory_plan import MemoryPlan
from edge_runtime.errors import UsageError
from edge_runtime.store.progress import format_bytes
from edge_runtime.typed_data import encode

_LINES = {
    "baseline": "interpreter and libraries",
    "weights_anonymous": "weights and tokenizer, in memory",
    "weights_mapped": "weights, mapped from their file",
    "activations": "activations of one chunk",
    "cache": "key-value cache, full",
    "headroom": "headroom",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_model_argument(parser)
    running = add_running_arguments(parser)
    running.add_argument("--slots", type=int, metavar="N", help="sequences at a time")
    running.add_argument("--chunk", type=int, metavar="N", help="most prompt tokens in a step")
    parser.add_argument("--json", action="store_true", help="print it as JSON, sizes in bytes")


def run(arguments: argparse.Namespace) -> int:
    """Load the model, measure one chunk, print the plan."""
    if asked_cap(arguments) is None and device_defaults(arguments).memory_cap_bytes is None:
        limit = default_limit(arguments)
        if limit is None:
            raise UsageError(
                "plan needs a memory cap", hint="--memory-cap 300M, or a --target with one"
            )
        arguments.memory_cap = str(limit.bytes)
    else:
        limit = None
    with open_engine(arguments, slots=arguments.slots, chunk_size=arguments.chunk) as opened:
        plan = opened.engine.memory_plan
    assert plan is not None
    if limit is not None:
        plan = replace(plan, cap_source=limit.source)
    print(json.dumps(encode(plan) | {"total": plan.total}) if arguments.json else _as_text(plan))
    return 0


def _as_text(plan: MemoryPlan) -> str:
    rows = [[text, format_bytes(getattr(plan, name))] for name, text in _LINES.items()]
    rows += [["all", format_bytes(plan.total)], ["cap", format_bytes(plan.cap)]]
    granted = plan.granted
    facts = [
        ("cap", plan.cap_source),
        ("context", f"{granted.context_length} tokens"),
        ("slots", str(granted.slots)),
        ("chunk", f"{granted.chunk_size} tokens"),
        ("cache", granted.cache_type),
    ]
    facts += [("gave way", step) for step in plan.steps]
    return f"{table(['MEMORY', 'SIZE'], rows, right='SIZE')}\n\n{pairs(facts)}"
