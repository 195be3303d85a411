"""Measure what an export cost in quality: per-token KL against the source's own weights.

    python -m edge_tools.evaluate MODEL [--quant int8] [--tokens 10000] [--json]

The truth is float32 compute of the weights that the GGUF file holds
(:mod:`edge_tools.reference_llama`) or, to see what `--cache-type` costs, the same bundle over a float32
cache; the text is the Python language reference (:mod:`edge_tools.prose`), read in windows. Knows the
engine only through its public names.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edge_runtime.bundle import CACHE_TYPES, read_manifest
from edge_runtime.engine.engine import Engine, EngineOptions
from edge_runtime.errors import UsageError
from edge_tools.command import bundle_of, parser, run, say, source_of
from edge_tools.divergence import Divergence, TokenDivergences, compare, summarize
from edge_tools.machine import this_machine
from edge_tools.prose import prose_of, python_reference
from edge_tools.reference_llama import ReferenceLlama

F32 = NDArray[np.float32]


class Scorer(Protocol):
    """What is needed of an engine."""

    def score(self, token_ids: Sequence[int]) -> Iterator[F32]:
        """Logits float32 (chunk, V), in order, for every position."""


class Reference(Protocol):
    """What is needed of the truth."""

    def hidden(self, token_ids: Sequence[int]) -> F32:
        """States (S, hidden)."""

    def head(self, hidden: F32) -> F32:
        """Logits (N, V) of states (N, hidden)."""


class CacheReference:
    """The same bundle over a float32 cache as the truth: what the type of the cache alone costs.

    Args:
        exact: the engine over that cache.
    """

    def __init__(self, exact: Scorer) -> None:
        self._exact = exact

    def hidden(self, token_ids: Sequence[int]) -> F32:
        """The logits themselves, (S, V)."""
        return np.concatenate(list(self._exact.score(token_ids)))

    def head(self, hidden: F32) -> F32:
        """As they are."""
        return hidden


def windows(token_ids: Sequence[int], size: int, begin: int | None) -> list[list[int]]:
    """Cut a text into windows of at most ``size`` tokens, each after the begin token if given."""
    step = size if begin is None else size - 1
    head = [] if begin is None else [begin]
    return [head + list(token_ids[i : i + step]) for i in range(0, len(token_ids), step)]


def compare_window(
    scorer: Scorer, reference: Reference, token_ids: Sequence[int]
) -> Iterator[TokenDivergences]:
    """Compare at every position of one window.

    A chunk at a time, so that only a chunk's logits are in memory.
    """
    states = reference.hidden(token_ids)
    following = np.array([*token_ids[1:], -1], dtype=np.int64)
    start = 0
    for logits in scorer.score(token_ids):
        stop = start + len(logits)
        yield compare(reference.head(states[start:stop]), logits, following[start:stop])
        start = stop


def evaluate(
    scorer: Scorer,
    reference: Reference,
    parts: Sequence[Sequence[int]],
    report: Callable[[str], None],
) -> Divergence:
    """Divergence over all windows."""
    found: list[TokenDivergences] = []
    for number, part in enumerate(parts, 1):
        found += compare_window(scorer, reference, part)
        report(f"window {number} of {len(parts)}: KL {np.mean(found[-1].kl):.4f}")
    return summarize(found)


def add_arguments(arguments: argparse.ArgumentParser) -> None:
    """What it takes besides MODEL, --quant, --threads and --json."""
    arguments.add_argument("--source", type=Path, help="the .gguf file MODEL was exported from")
    arguments.add_argument(
        "--text", type=Path, metavar="FILE", help="UTF-8 text to read; default: Python's reference"
    )
    arguments.add_argument("--tokens", type=int, default=10_000, help="most tokens of it to read")
    arguments.add_argument("--window", type=int, default=512, help="tokens read in one go")
    arguments.add_argument("--cache-type", choices=CACHE_TYPES, default="float32")
    arguments.add_argument(
        "--against",
        choices=("source", "float32-cache"),
        default="source",
        help="the truth: the source's weights, or the same bundle over a float32 cache",
    )


def main() -> None:
    """The command line."""
    arguments = parser("evaluate", __doc__)
    add_arguments(arguments)
    show(arguments.parse_args())


def show(asked: argparse.Namespace) -> None:
    """Evaluate what the arguments ask for, and print it.

    Raises:
        EdgeRuntimeError: there is no such model, source or text.
    """
    if asked.tokens < 1 or asked.window < 2:
        raise UsageError(f"--tokens {asked.tokens} --window {asked.window}")
    prose = python_reference() if asked.text is None else prose_of(asked.text)
    against_cache = asked.against == "float32-cache"
    source = None if against_cache else asked.source or source_of(asked.model)
    bundle = bundle_of(asked)
    exact = EngineOptions(context_length=asked.window, threads=asked.threads)
    options = replace(exact, cache_type=asked.cache_type)
    with ExitStack() as opened:
        engine = opened.enter_context(Engine.load(bundle, options))
        tokenizer = engine.manifest.tokenizer
        ids = engine.tokenizer.encode(prose.text)[: asked.tokens]
        if len(ids) < 2:
            raise UsageError(f"{prose.name} has {len(ids)} tokens: nothing follows anything")
        begin = tokenizer.bos_token_id if tokenizer.add_bos else None
        reference: Reference
        if source is None:
            reference = CacheReference(opened.enter_context(Engine.load(bundle, exact)))
        else:
            say(f"reading {source} into float32")
            reference = ReferenceLlama.open(source)
        result = evaluate(engine, reference, windows(ids, asked.window, begin), say)
    _print(result, bundle, prose.name, prose.sha256, asked)


def _print(
    result: Divergence, bundle: Path, text: str, sha256: str, asked: argparse.Namespace
) -> None:
    manifest = read_manifest(bundle)
    if asked.json:
        facts = {
            "model": manifest.name,
            "recipe": manifest.quantization.recipe,
            "cache_type": asked.cache_type,
            "against": asked.against,
            "text": text,
            "text_sha256": sha256,
            "window": asked.window,
            **asdict(this_machine()),
        }
        print(json.dumps({**asdict(result), **facts}, indent=2))
        return
    recipe = f"{manifest.quantization.recipe}, {asked.cache_type} cache, against {asked.against}"
    print(f"{manifest.name} ({recipe}) on {result.tokens} tokens of {text}")
    print(f"KL a token         {result.kl:.5f} nats (99th percentile {result.kl_99:.4f})")
    print(f"same top token     {100 * result.top_1:.2f} %")
    print(f"perplexity         {result.perplexity:.3f} (truth {result.reference_perplexity:.3f})")


if __name__ == "__main__":
    run(main)
