"""Measure this runtime beside llama.cpp, onnxruntime-genai and OpenVINO GenAI on this machine.

    python -m edge_tools.compare MODEL.gguf [--llama-python PATH] [--genai-python PATH]
        [--openvino-python PATH] [--recipes int4,auto] [--rounds 3] [--json FILE]

The same prompt tokens, threads and greedy choice, each runtime in a process of its own, in turns.
A peer takes part where an interpreter that has it is named. Prints a table, and writes JSON that
:mod:`edge_tools.comparison_report` turns into a picture and into the README's table. Knows how to
measure nothing itself (:mod:`edge_tools.contest`, :mod:`edge_tools.quality_of_peers`).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edge_runtime.bundle import read_manifest
from edge_runtime.engine.engine import Engine
from edge_runtime.errors import UsageError
from edge_runtime.store.names import RECIPES
from edge_tools.bench import engine_options
from edge_tools.command import run, say, source_of
from edge_tools.comparison_report import table
from edge_tools.contest import Contestant, hold
from edge_tools.machine import this_machine
from edge_tools.peers.peer import EDGE, GENAI, LLAMA_CPP, OPENVINO, LlamaCpp
from edge_tools.peers.requantize import KINDS, requantize
from edge_tools.prose import python_reference
from edge_tools.quality_of_peers import divergences


def main() -> None:
    """The command line."""
    asked = _arguments()
    source = source_of(asked.model)
    threads = asked.threads or this_machine().usable_cpus
    with tempfile.TemporaryDirectory() as folder:
        contestants = _contestants(asked, source, Path(folder), threads)
        bundle = contestants[0].path
        with Engine.load(bundle, engine_options(bundle, asked.threads)) as engine:
            text_ids = engine.encode_prompt(python_reference().text[:60_000])
        results = hold(contestants, text_ids, threads=threads, rounds=asked.rounds, report=say)
        quality = divergences(contestants, source, text_ids[: asked.quality_tokens], threads, say)
    comparison: dict[str, Any] = {
        "model": source.name,
        "threads": threads,
        "rounds": asked.rounds,
        "quality_tokens": asked.quality_tokens,
        "text": python_reference().name,
        "machine": asdict(this_machine()),
        "results": [
            {
                "label": result.label,
                "version": result.version,
                "figures": dict(result.figures) | quality[result.label],
            }
            for result in results
        ],
    }
    if asked.json:
        asked.json.write_text(json.dumps(comparison, indent=2) + "\n", encoding="utf-8")
    from rich.console import Console

    Console().print(table(comparison))


def _arguments() -> argparse.Namespace:
    made = argparse.ArgumentParser(
        prog="python -m edge_tools.compare", description=(__doc__ or "").split("\n\n", 1)[0]
    )
    made.add_argument("model", metavar="MODEL", help="a .gguf file, or a model's name")
    for name, runtime in (("llama", LLAMA_CPP), ("genai", GENAI), ("openvino", OPENVINO)):
        made.add_argument(
            f"--{name}-python",
            type=Path,
            metavar="PATH",
            help=f"an interpreter that has {runtime.module}",
        )
    made.add_argument("--recipes", default="int4", help="ours, such as int4,auto")
    made.add_argument(
        "--kinds", default="Q4_0", help=f"of the peers, beside the file's own: {', '.join(KINDS)}"
    )
    made.add_argument("--threads", type=int, metavar="N", help="of each runtime")
    made.add_argument("--rounds", type=int, default=3, help="rounds to take medians of")
    made.add_argument("--quality-tokens", type=int, default=2048, help="tokens for the KL; 0: none")
    made.add_argument("--json", type=Path, metavar="FILE", help="where to write all figures")
    asked = made.parse_args()
    if asked.rounds < 1:
        raise UsageError(f"--rounds is {asked.rounds}", hint="use 1 or more")
    return asked


def _contestants(
    asked: argparse.Namespace, source: Path, folder: Path, threads: int
) -> list[Contestant]:
    """Ours first; every file that a peer needs is made here."""
    from edge_runtime.store.resolve import ensure_bundle

    found: list[Contestant] = []
    for recipe in asked.recipes.split(","):
        if recipe not in RECIPES:
            raise UsageError(f"no recipe {recipe!r}", hint=f"use {', '.join(RECIPES)}")
        bundle = ensure_bundle(str(source), quant=recipe, report=lambda _: None)
        size = _weights_bytes(bundle)
        found.append(Contestant(f"edge-runtime {recipe}", EDGE, None, bundle, size))
    ours = found[0]
    if asked.genai_python:
        label = f"onnxruntime-genai, {ours.label.split()[-1]} bundle"
        python = asked.genai_python
        found.append(Contestant(label, GENAI, python, ours.path, ours.weights_bytes))
    files = {"as shipped": source}
    for kind in filter(None, asked.kinds.split(",")):
        files[kind] = folder / f"{kind}.gguf"
        say(f"requantizing to {kind}")
        if kind in KINDS:
            requantize(source, files[kind], kind)
        elif asked.llama_python:
            with LlamaCpp(asked.llama_python) as peer:
                peer.requantize(source, files[kind], kind, threads)
        else:
            raise UsageError(f"{kind} needs llama.cpp to make it", hint="name --llama-python")
    for kind, path in files.items():
        size = path.stat().st_size
        if asked.llama_python:
            label = f"llama.cpp, {kind}"
            found.append(Contestant(label, LLAMA_CPP, asked.llama_python, path, size))
        # It reads these kinds of GGUF files and no other.
        if asked.openvino_python and kind in KINDS:
            label = f"OpenVINO GenAI, {kind}"
            found.append(Contestant(label, OPENVINO, asked.openvino_python, path, size))
    return found


def _weights_bytes(bundle: Path) -> int:
    manifest = read_manifest(bundle)
    names = {name for graph in manifest.graphs for name in graph.weights}
    return sum(manifest.files[name].size_bytes for name in names)


if __name__ == "__main__":
    run(main)
