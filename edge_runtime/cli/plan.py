"""Show how a memory cap would be split, from what this model really takes on this machine."""

from __future__ import annotations

import argparse
import json

from edge_runtime.cli.reporting import Reporter
from edge_runtime.cli.tables import pairs, table
from edge_runtime.engine.memory_plan import MemoryPlan, parse_bytes
from edge_runtime.file_hash import RememberedHashes
from edge_runtime.providers.memory_advice import keep_heap_small
from edge_runtime.store.home import Home
from edge_runtime.store.names import RECIPES
from edge_runtime.store.progress import format_bytes
from edge_runtime.store.resolve import ensure_bundle
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
    parser.add_argument(
        "model", metavar="MODEL", help="a bundle directory, a .gguf file, or a name in the store"
    )
    parser.add_argument("--memory-cap", metavar="SIZE", required=True, help="such as 300M or 1.5G")
    parser.add_argument("--context", type=int, metavar="N", help="tokens that a text may hold")
    parser.add_argument("--slots", type=int, metavar="N", default=1, help="sequences at a time")
    parser.add_argument("--chunk", type=int, metavar="N", help="most prompt tokens in a step")
    parser.add_argument("--threads", type=int, metavar="N", help="default: what the CPU gives")
    parser.add_argument("--quant", choices=RECIPES, help="the recipe of a .gguf file's export")
    parser.add_argument("--json", action="store_true", help="print it as JSON, sizes in bytes")


def run(arguments: argparse.Namespace) -> int:
    """Load the model, measure one chunk, print the plan."""
    cap = parse_bytes(arguments.memory_cap)
    keep_heap_small()
    home = Home.find()
    with Reporter() as report:
        bundle = ensure_bundle(arguments.model, quant=arguments.quant, report=report, home=home)
    from edge_runtime.engine.engine import Engine, EngineOptions

    chunk = {} if arguments.chunk is None else {"chunk_size": arguments.chunk}
    options = EngineOptions(
        context_length=arguments.context,
        slots=arguments.slots,
        threads=arguments.threads,
        memory_cap_bytes=cap,
        **chunk,
    )
    with Engine.load(bundle, options, hash_file=RememberedHashes(home.hashes)) as engine:
        plan = engine.memory_plan
    assert plan is not None
    print(json.dumps(encode(plan) | {"total": plan.total}) if arguments.json else _as_text(plan))
    return 0


def _as_text(plan: MemoryPlan) -> str:
    rows = [[text, format_bytes(getattr(plan, name))] for name, text in _LINES.items()]
    rows += [["all", format_bytes(plan.total)], ["cap", format_bytes(plan.cap)]]
    granted = plan.granted
    facts = [
        ("context", f"{granted.context_length} tokens"),
        ("slots", str(granted.slots)),
        ("chunk", f"{granted.chunk_size} tokens"),
    ]
    facts += [("gave way", step) for step in plan.steps]
    return f"{table(['MEMORY', 'SIZE'], rows, right='SIZE')}\n\n{pairs(facts)}"
