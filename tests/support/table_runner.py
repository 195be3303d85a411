"""A model of a few bytes: the logits of the next token are a row of a table, by the last token.

It is exact in float32 whatever the steps, so that tests can demand equal tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edge_runtime.testing import ScriptedRunner


class TableRunner(ScriptedRunner):
    """A runner whose answers repeat themselves now and then, as texts do.

    Args:
        vocabulary_size: V of the logits.
        alphabet: the tokens that it writes; their rows are drawn from ``seed``.
        spread: standard deviation of their logits; the larger, the more predictable.
    """

    def __init__(
        self, *, vocabulary_size: int, alphabet: Sequence[int], seed: int = 0, spread: float = 2.0
    ) -> None:
        super().__init__(lambda seen: 0, vocabulary_size=vocabulary_size)
        random = np.random.default_rng(seed)
        self.table = np.full((vocabulary_size, vocabulary_size), -30.0, np.float32)
        drawn = random.normal(size=(vocabulary_size, len(alphabet))) * spread
        self.table[:, list(alphabet)] = drawn

    def score(self, seen: Sequence[int], logits: NDArray[np.float32]) -> None:
        """The last token's row."""
        logits[:] = self.table[seen[-1]]
