"""A memory cap on the real model, as another process sees it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
with Engine.load(sys.argv[1], EngineOptions(memory_cap_bytes=int(sys.argv[2]))) as engine:
    prompt = [5 + i * 31 % 40000 for i in range(engine.context_length - 8)]
    tokens = list(engine.generate_tokens(prompt, SamplingParams(temperature=0, ignore_eos=True)))
    peak = re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())
    print(json.dumps({
        "peak": int(peak[1]) * 1024,
        "context": engine.context_length,
        "tokens": len(tokens),
        "reason": tokens[-1].finish_reason.value,
    }))
"""


def test_a_full_context_stays_under_the_cap(real_bundle: Path) -> None:
    cap = 420_000_000
    result = subprocess.run(
        [sys.executable, "-c", FILL_CONTEXT, str(real_bundle), str(cap)],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    found = json.loads(result.stdout)
    assert found["peak"] <= cap
    assert 256 <= found["context"] < 8192, "the cap is small enough to bind"
    assert found["reason"] == "length"
    assert found["tokens"] == 8


def test_a_cap_below_the_weights_is_refused_with_one_that_would_do(real_bundle: Path) -> None:
    with pytest.raises(MemoryCapError, match="50 MB") as caught:
        Engine.load(real_bundle, EngineOptions(memory_cap_bytes=50_000_000))
    assert caught.value.smallest_cap > 100_000_000


def test_plan_prints_lines_that_add_up(real_bundle: Path) -> None:
    options = ["--memory-cap", "600M", "--slots", "2", "--context", "2048", "--json"]
    result = subprocess.run(
        [sys.executable, "-m", "edge_runtime", "plan", str(real_bundle), *options],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    plan = json.loads(result.stdout)
    parts = ("baseline", "weights_anonymous", "weights_mapped", "activations", "cache", "headroom")
    assert sum(plan[part] for part in parts) == plan["total"] <= plan["cap"] == 600_000_000
    assert plan["granted"]["slots"] == 2


def test_a_plan_without_a_cap_is_made_for_what_the_machine_leaves(real_bundle: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "edge_runtime", "plan", str(real_bundle), "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    plan = json.loads(result.stdout)
    assert plan["total"] <= plan["cap"]
    assert "available" in plan["cap_source"] or "control group" in plan["cap_source"]
