"""What each contestant's weights cost in quality: KL against float32 compute of the source's own.

Only runtimes that give logits can be measured; for the others there is no figure. Knows no speed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_runtime.engine.engine import Engine, EngineOptions
from edge_tools.contest import Contestant
from edge_tools.divergence import summarize
from edge_tools.evaluate import compare_window, windows
from edge_tools.peers.peer import EDGE, GENAI, Peer
from edge_tools.reference_llama import ReferenceLlama

_WINDOW = 512
_ROWS = 64


class _ReadLogits:
    """Logits of a peer, out of a file."""

    def __init__(self, peer: Peer, file: Path) -> None:
        self._peer, self._file = peer, file

    def score(self, token_ids: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        """Logits float32 (chunk, V), in order, for every position."""
        self._peer.score(token_ids, self._file)
        logits = np.load(self._file, mmap_mode="r")
        for start in range(0, len(logits), _ROWS):
            yield np.array(logits[start : start + _ROWS])


def divergences(
    contestants: Sequence[Contestant],
    source: Path,
    token_ids: Sequence[int],
    threads: int,
    report: Callable[[str], None],
) -> dict[str, dict[str, float | None]]:
    """``kl`` (nats a token) and ``top_1`` (share) by label; None where a runtime gives no logits."""
    nothing: dict[str, float | None] = {"kl": None, "top_1": None}
    found = {c.label: dict(nothing) for c in contestants}
    if not token_ids:
        return found
    reference = ReferenceLlama.open(source)
    parts = windows(token_ids, _WINDOW, None)
    by_bundle: dict[Path, dict[str, float | None]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for contestant in contestants:
            report(f"quality: {contestant.label}")
            if contestant.runtime == EDGE:
                options = EngineOptions(context_length=_WINDOW, threads=threads)
                with Engine.load(contestant.path, options) as engine:
                    tokens = [t for part in parts for t in compare_window(engine, reference, part)]
            elif contestant.runtime == GENAI:
                # The same graph and weights, so the same figure.
                found[contestant.label] = by_bundle.get(contestant.path, dict(nothing))
                continue
            else:
                with Peer(contestant.runtime, contestant.python) as peer:
                    peer.load(contestant.path, threads=threads, context_length=_WINDOW)
                    file = Path(folder) / "logits.npy"
                    if not peer.score(parts[0][:1], file):
                        continue
                    logits = _ReadLogits(peer, file)
                    tokens = [t for part in parts for t in compare_window(logits, reference, part)]
            result = summarize(tokens)
            found[contestant.label] = {"kl": result.kl, "top_1": result.top_1}
            if contestant.runtime == EDGE:
                by_bundle[contestant.path] = found[contestant.label]
    return found
