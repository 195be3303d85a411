"""The process that a soak watches: loads the bundle, runs the requests, tells in JSON lines.

Standard input brings one JSON object, :class:`SoakOrder`; standard output gives a line of progress
now and then, ``{"ended": N}``, and last the result.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_runtime.engine.engine import Engine, EngineOptions
from edge_runtime.providers.memory_advice import keep_heap_small
from edge_tools.soak_load import soak_requests
from edge_tools.soak_run import run_soak

# A limit on private memory leaves the plan's own headroom: 5 % of the cap.
_HEADROOM_SHARE = 0.05


@dataclass(frozen=True)
class SoakOrder:
    """What the worker is to do.

    With ``data_limit`` the system refuses private memory (RLIMIT_DATA) beyond what is reserved once
    the model is loaded and 5 % of the cap: whatever leaks past that fails its request.
    """

    bundle: str
    memory_cap_bytes: int
    requests: int
    seed: int
    slots: int
    context_length: int
    threads: int | None
    admission: str
    cache_tokens: int | None
    data_limit: bool


def main() -> None:
    """Do what standard input says."""
    keep_heap_small()
    order = SoakOrder(**json.load(sys.stdin))
    options = EngineOptions(
        context_length=order.context_length,
        slots=order.slots,
        threads=order.threads,
        memory_cap_bytes=order.memory_cap_bytes,
        admission=order.admission,
        cache_tokens=order.cache_tokens,
    )
    with Engine.load(order.bundle, options) as engine:
        limit = _limit_data(order.memory_cap_bytes) if order.data_limit else None
        requests = soak_requests(
            order.requests,
            seed=order.seed,
            context_length=engine.context_length,
            vocabulary_size=engine.manifest.dimensions.vocabulary_size,
        )
        slots = engine.metrics.snapshot().gauges.slots
        tally = run_soak(
            engine,
            requests,
            parallel=3 * order.slots,
            report=lambda ended: _tell({"ended": ended}),
        )
        found = engine.metrics.snapshot()
        _tell(
            {
                "requests": tally.requests,
                "ends": dict(tally.ends),
                "problems": tally.problems,
                "slots": slots or order.slots,
                "context_length": engine.context_length,
                "plan": list(engine.memory_plan.steps) if engine.memory_plan else [],
                "counts": dataclasses.asdict(found.counts),
                "pressure": {action.value: count for action, count in found.pressure.items()},
                "batch_occupancy": found.batch_occupancy,
                "padding_waste": found.padding_waste,
                "data_limit_bytes": limit,
            }
        )


def _limit_data(cap_bytes: int) -> int:
    import resource

    status = Path("/proc/self/status").read_text(encoding="ascii")
    reserved = re.search(r"VmData:\s*(\d+)", status)
    assert reserved is not None
    limit = int(reserved[1]) * 1024 + int(cap_bytes * _HEADROOM_SHARE)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    return limit


def _tell(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
