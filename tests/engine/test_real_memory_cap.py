"""A memory cap on the real model, as another process sees it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.int8_attention import needs_int8_attention

from edge_runtime.bundle import read_manifest
from edge_runtime.engine.engine import Engine, EngineOptions
from edge_runtime.errors import MemoryCapError

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="caps need /proc"),
]

# Fills the whole context it was granted, then tells the most it ever held.
FILL_CONTEXT = """
import json, re, sys
from pathlib import Path
from edge_runtime import Engine, EngineOptions, SamplingParams
from edge_runtime.providers.memory_advice import keep_heap_small
keep_heap_small()
options = EngineOptions(context_length=1536, memory_cap_bytes=int(sys.argv[2]))
with Engine.load(sys.argv[1], options) as engine:
    prompt = [5 + i * 31 % 40000 for i in range(engine.context_length - 8)]
    tokens = list(engine.generate_tokens(prompt, SamplingParams(temperature=0, ignore_eos=True)))
    peak = re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())
    print(json.dumps({
        "peak": int(peak[1]) * 1024,
        "context": engine.context_length,
        "steps": engine.memory_plan.steps,
        "tokens": len(tokens),
        "reason": tokens[-1].finish_reason.value,
    }))
"""


@pytest.mark.parametrize("part_of_cache", [0.6, 0.3])
def test_a_full_context_stays_under_the_cap(real_bundle: Path, part_of_cache: float) -> None:
    """With an int8 cache the first cap holds the whole context, and the second a part of it."""
    plan = planned(real_bundle, "--memory-cap", "2G", "--context", "1536")
    used = plan["total"] - plan["headroom"] - plan["activations"]
    cap = int((used - (1 - part_of_cache) * plan["cache"]) / 0.95)
    result = subprocess.run(
        [sys.executable, "-c", FILL_CONTEXT, str(real_bundle), str(cap)],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    found = json.loads(result.stdout)
    assert found["peak"] <= cap
    assert found["steps"], "the cap is small enough to bind"
    assert 256 <= found["context"] <= 1536
    assert found["reason"] == "length"
    assert found["tokens"] == 8


@needs_int8_attention
def test_the_int8_cache_is_taken_before_the_context_shrinks(real_bundle: Path) -> None:
    if all(graph.cache_type != "int8" for graph in read_manifest(real_bundle).graphs):
        pytest.skip("the bundle was exported before there was an int8 cache")
    wide = planned(real_bundle, "--memory-cap", "2G", "--context", "1536")
    used = wide["total"] - wide["headroom"] - wide["activations"]
    cap = int((used - 0.4 * wide["cache"]) / 0.95)
    plan = planned(real_bundle, "--memory-cap", str(cap), "--context", "1536")
    assert plan["granted"]["cache_type"] == "int8"
    assert plan["granted"]["context_length"] == 1536
    assert plan["cache"] == wide["cache"] // 4
    assert "cache int8 (asked for float32)" in plan["steps"]
    assert plan["total"] <= cap


def test_a_cap_below_the_weights_is_refused_with_one_that_would_do(real_bundle: Path) -> None:
    with pytest.raises(MemoryCapError, match="50 MB") as caught:
        Engine.load(real_bundle, EngineOptions(memory_cap_bytes=50_000_000))
    assert caught.value.smallest_cap > 100_000_000


def test_plan_prints_lines_that_add_up(real_bundle: Path) -> None:
    plan = planned(real_bundle, "--memory-cap", "600M", "--slots", "2", "--context", "2048")
    parts = ("baseline", "weights_anonymous", "weights_mapped", "activations", "cache", "headroom")
    assert sum(plan[part] for part in parts) == plan["total"] <= plan["cap"] == 600_000_000
    assert plan["granted"]["slots"] == 2


def test_a_plan_without_a_cap_is_made_for_what_the_machine_leaves(real_bundle: Path) -> None:
    plan = planned(real_bundle)
    assert plan["total"] <= plan["cap"]
    assert "available" in plan["cap_source"] or "control group" in plan["cap_source"]


def planned(bundle: Path, *options: str) -> dict[str, Any]:
    """What `plan` prints."""
    result = subprocess.run(
        [sys.executable, "-m", "edge_runtime", "plan", str(bundle), *options, "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    plan: dict[str, Any] = json.loads(result.stdout)
    return plan
