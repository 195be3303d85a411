"""Does another provider give the CPU's answers here, how fast, and within a memory cap?

``python -m edge_tools.gpu_check BUNDLE`` takes every provider that is ready on this machine and that
the bundle has a graph for, or the one named with ``--provider``. It compares next-token
distributions on a text and greedy answers with the CPU provider's, measures both in turns, and
loads once more under a cap. To be run wherever there is a GPU; knows no device by name.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from edge_runtime.bundle import read_manifest
from edge_runtime.engine.engine import Engine, EngineOptions
from edge_runtime.engine.memory_plan import parse_bytes
from edge_runtime.errors import EdgeRuntimeError
from edge_runtime.generation.params import SamplingParams
from edge_runtime.providers.catalog import CPU_PROVIDER
from edge_runtime.providers.probe import State, diagnose
from edge_runtime.typed_data import encode
from edge_tools.divergence import compare, summarize

PROMPTS = (
    "Name three rivers of Europe.",
    "Explain what a battery is to a child.",
    "Write one sentence about the sea.",
)
TEXT = (
    "A bridge carries a road over a river. Engineers choose its form by the length of the span, "
    "the ground on both banks and the loads that will cross it. Short bridges are beams; longer "
    "ones are arches, trusses or cables hung between towers. Wind, heat and rust all work on it, "
    "so that every bridge is inspected at fixed times and repaired long before it could fail."
)
# Less than this many logits apart, two tokens are a near tie: rounding decides between them.
_NEAR_TIE = 0.5


@dataclass(frozen=True)
class Answer:
    """A greedy answer beside the CPU's.

    Args:
        prompt: the question.
        same_tokens: tokens until the first difference.
        tokens: in all.
        gap: by how many logits the CPU preferred its own token there; None where all are the same.
    """

    prompt: str
    same_tokens: int
    tokens: int
    gap: float | None

    @property
    def agrees(self) -> bool:
        """All the same, or parted at a near tie."""
        return self.gap is None or self.gap < _NEAR_TIE


@dataclass(frozen=True)
class ProviderCheck:
    """What one provider did.

    Args:
        provider: onnxruntime's name.
        graph: that it ran.
        assignment: how much of it the provider took.
        divergence: mean Kullback-Leibler divergence from the CPU's distributions, nats a token.
        top_agreement: share of positions where the likeliest token is the CPU's.
        answers: greedy, one a prompt.
        prefill_tokens_per_s, decode_tokens_per_s: the medians, the CPU provider's second.
        cpu_s_per_token: processor seconds a decoded token, the CPU provider's second.
        memory_cap: what came of loading under the cap; None where none was asked for.
    """

    provider: str
    graph: str
    assignment: str
    divergence: float
    top_agreement: float
    answers: tuple[Answer, ...]
    prefill_tokens_per_s: tuple[float, float]
    decode_tokens_per_s: tuple[float, float]
    cpu_s_per_token: tuple[float, float]
    memory_cap: str | None

    @property
    def agrees(self) -> bool:
        """Whether every answer is the CPU's, but for near ties."""
        return all(answer.agrees for answer in self.answers)


def ready_providers(bundle: Path) -> list[str]:
    """Short names of what this machine could run the bundle on, beside the CPU."""
    listed = {name for graph in read_manifest(bundle).graphs for name in graph.providers}
    return [
        state.short_name
        for state in diagnose().providers
        if state.state is State.READY and state.name in listed and state.name != CPU_PROVIDER
    ]


def check_provider(
    bundle: Path,
    provider: str,
    *,
    tokens: int,
    turns: int,
    cap_bytes: int | None,
    threads: int | None,
) -> ProviderCheck:
    """Compare one provider with the CPU's.

    Args:
        bundle: the model.
        provider: as `--provider` takes it.
        tokens: of each greedy answer.
        turns: measurements of each, in alternation.
        cap_bytes: to load under once more; None for no such check.
        threads: of the CPU's part; None chooses.

    Raises:
        EdgeRuntimeError: the provider does not run the bundle.
    """
    options = EngineOptions(providers=(provider,), threads=threads)
    cpu_options = EngineOptions(providers=("cpu",), threads=threads)
    with Engine.load(bundle, options) as other, Engine.load(bundle, cpu_options) as cpu:
        report = other.provider
        assert report is not None
        ids = cpu.encode_prompt(TEXT)[: min(cpu.context_length, other.context_length) - tokens]
        found = np.concatenate(list(other.score(ids)))
        wanted = np.concatenate(list(cpu.score(ids)))
        answers = tuple(_answer(other, cpu, prompt, tokens) for prompt in PROMPTS)
        measured: list[tuple[tuple[float, float, float], tuple[float, float, float]]] = []
        for _ in range(turns):
            measured.append((_speed(other, ids, tokens), _speed(cpu, ids, tokens)))
        medians = [
            [statistics.median(pair[which][n] for pair in measured) for which in (0, 1)]
            for n in range(3)
        ]
    following = np.array([*ids[1:], -1], np.int64)
    told = summarize([compare(wanted, found, following)])
    return ProviderCheck(
        provider=report.provider,
        graph=report.graph.file,
        assignment=str(report.assignment or "all, as the CPU's own"),
        divergence=told.kl,
        top_agreement=told.top_1,
        answers=answers,
        prefill_tokens_per_s=(medians[0][0], medians[0][1]),
        decode_tokens_per_s=(medians[1][0], medians[1][1]),
        cpu_s_per_token=(medians[2][0], medians[2][1]),
        memory_cap=None if cap_bytes is None else _under_cap(bundle, options, cap_bytes),
    )


def _answer(other: Engine, cpu: Engine, prompt: str, tokens: int) -> Answer:
    greedy = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    ids = (
        cpu.encode_chat([{"role": "user", "content": prompt}])
        if cpu.chat_template
        else (cpu.encode_prompt(prompt))
    )
    found = other.generate(ids, greedy).token_ids
    wanted = cpu.generate(ids, greedy).token_ids
    same = next((i for i, (a, b) in enumerate(zip(found, wanted, strict=True)) if a != b), None)
    if same is None:
        return Answer(prompt, len(wanted), len(wanted), None)
    last = list(cpu.score([*ids, *wanted[:same]]))[-1][-1]
    gap = float(last[wanted[same]] - last[found[same]])
    return Answer(prompt, same, len(wanted), gap)


def _speed(engine: Engine, ids: Sequence[int], tokens: int) -> tuple[float, float, float]:
    """Tokens a second in prefill and in decode, and processor seconds a decoded token."""
    engine.reset()
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    stream = engine.generate_tokens(ids, params)
    started_s = time.perf_counter()
    next(stream)
    first_s, spent = time.perf_counter(), os.times()
    made = sum(1 for _ in stream)
    ended_s, after = time.perf_counter(), os.times()
    processor_s = after.user + after.system - spent.user - spent.system
    return len(ids) / (first_s - started_s), made / (ended_s - first_s), processor_s / max(1, made)


def _under_cap(bundle: Path, options: EngineOptions, cap_bytes: int) -> str:
    try:
        with Engine.load(bundle, replace(options, memory_cap_bytes=cap_bytes)) as engine:
            engine.generate(PROMPTS[0], SamplingParams(temperature=0.0, max_tokens=8))
            resident = engine.memory().resident_bytes
    except EdgeRuntimeError as exc:
        return exc.message
    shown = "unknown" if resident is None else f"{resident / 1e6:.0f} MB"
    return f"{shown} resident under {cap_bytes / 1e6:.0f} MB"


def as_text(check: ProviderCheck) -> str:
    """The check for people."""
    lines = [
        f"{check.provider} on {check.graph}: {check.assignment}",
        f"  divergence from the CPU provider {check.divergence:.5f} nats a token, "
        f"top token the same at {check.top_agreement:.1%}",
    ]
    for answer in check.answers:
        parted = "" if answer.gap is None else f", parted where the CPU's led by {answer.gap:.3f}"
        lines.append(f"  {answer.prompt!r}: {answer.same_tokens} of {answer.tokens} tokens{parted}")
    for name, pair in (
        ("prefill", check.prefill_tokens_per_s),
        ("decode", check.decode_tokens_per_s),
    ):
        lines.append(f"  {name} {pair[0]:.1f} tokens/s, CPU provider {pair[1]:.1f}")
    spent = check.cpu_s_per_token
    lines.append(f"  processor {spent[0]:.3f} s a token, CPU provider {spent[1]:.3f}")
    if check.memory_cap:
        lines.append(f"  memory cap: {check.memory_cap}")
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Check each; exit code 1 where one does not run or does not agree, or there is none."""
    parser = argparse.ArgumentParser(prog="edge_tools.gpu_check", description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--provider", help="as edge-runtime run takes it; default: all ready ones")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--memory-cap", metavar="SIZE")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(argv)
    try:
        cap_bytes = None if asked.memory_cap is None else parse_bytes(asked.memory_cap)
        names = [asked.provider] if asked.provider else ready_providers(asked.bundle)
        checks = [
            check_provider(
                asked.bundle,
                name,
                tokens=asked.tokens,
                turns=asked.turns,
                cap_bytes=cap_bytes,
                threads=asked.threads,
            )
            for name in names
        ]
    except EdgeRuntimeError as exc:
        hint = f"\nhint: {exc.hint}" if exc.hint else ""
        print(f"error: {exc.message}{hint}", file=sys.stderr)
        return 1
    if asked.json:
        print(json.dumps([encode(check) for check in checks], indent=2))
    elif checks:
        print("\n\n".join(map(as_text, checks)))
    else:
        print(
            "no provider beside the CPU's is ready here with a graph in the bundle\n"
            "hint: edge-runtime doctor",
            file=sys.stderr,
        )
    return 0 if checks and all(check.agrees for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
