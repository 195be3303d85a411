"""When two runs of a real model may part: where the two likeliest tokens nearly tie.

Knows an engine; knows no test.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from edge_runtime.engine.engine import Engine

# Chunks of other sizes round differently in 8 bits: logits move by some hundredths.
NEAR_TIE = 0.05


def assert_same_or_near_tie(
    engine: Engine, ids: Sequence[int], expected: Sequence[int], found: Sequence[int]
) -> None:
    """Equal tokens, or a parting where the two likeliest logits differ by next to nothing."""
    pairs = zip(expected, found, strict=False)
    same = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
    if same == len(expected) == len(found):
        return
    logits = list(engine.score([*ids, *expected[:same]]))[-1][-1]
    low, high = np.sort(logits)[-2:]
    gap = float(high - low)
    print(f"parted after {same} of {len(expected)} tokens, at logits {gap:.4f} apart")
    assert gap < NEAR_TIE, f"parted after {same} tokens without a near-tie: {gap:.4f}"
