from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from edge_tools.evaluate import CacheReference, evaluate, windows

VOCABULARY = 11


class TableReference:
    """Logits are a row of a table for each token; states are one-hot."""

    def __init__(self, table: np.ndarray) -> None:
        self.table = table

    def hidden(self, token_ids: Sequence[int]) -> np.ndarray:
        return np.eye(VOCABULARY, dtype=np.float32)[list(token_ids)]

    def head(self, hidden: np.ndarray) -> np.ndarray:
        return hidden @ self.table


class ChunkedScorer:
    """The same table, with noise, given out in chunks of uneven size."""

    def __init__(self, table: np.ndarray, chunk: int) -> None:
        self.table = table
        self.chunk = chunk
        self.asked: list[list[int]] = []

    def score(self, token_ids: Sequence[int]) -> Iterator[np.ndarray]:
        self.asked.append(list(token_ids))
        for start in range(0, len(token_ids), self.chunk):
            yield self.table[list(token_ids[start : start + self.chunk])]


TABLE = np.random.default_rng(0).normal(size=(VOCABULARY, VOCABULARY)).astype(np.float32)
TEXT = [int(x) for x in np.random.default_rng(1).integers(0, VOCABULARY, 23)]


def test_windows_hold_every_token_once_and_in_order():
    parts = windows(TEXT, 5, begin=None)
    assert [t for part in parts for t in part] == TEXT
    assert max(map(len, parts)) == 5


def test_windows_begin_with_the_begin_token_and_keep_their_size():
    parts = windows(TEXT, 5, begin=99)
    assert all(part[0] == 99 for part in parts)
    assert [t for part in parts for t in part[1:]] == TEXT
    assert max(map(len, parts)) == 5


def test_the_right_model_diverges_by_nothing_however_it_is_chunked():
    for chunk in (1, 3, 100):
        result = evaluate(
            ChunkedScorer(TABLE, chunk),
            TableReference(TABLE),
            windows(TEXT, 8, None),
            lambda _: None,
        )
        assert result.tokens == len(TEXT)
        assert result.kl < 1e-6
        assert result.top_1 == 1.0


def test_a_wrong_model_is_found_out():
    wrong = TABLE + np.random.default_rng(2).normal(size=TABLE.shape).astype(np.float32)
    result = evaluate(ChunkedScorer(wrong, 4), TableReference(TABLE), [TEXT], lambda _: None)
    assert result.kl > 0.1


def test_each_window_is_reported():
    said: list[str] = []
    evaluate(ChunkedScorer(TABLE, 4), TableReference(TABLE), windows(TEXT, 8, None), said.append)
    assert len(said) == 3


def test_a_cache_is_compared_with_what_the_same_model_says_over_another():
    noisy = TABLE + 0.01 * np.random.default_rng(2).normal(size=TABLE.shape).astype(np.float32)
    exact = ChunkedScorer(TABLE, 3)
    parts = windows(TEXT, 8, None)
    same = evaluate(ChunkedScorer(TABLE, 4), CacheReference(exact), parts, lambda _: None)
    other = evaluate(ChunkedScorer(noisy, 4), CacheReference(exact), parts, lambda _: None)
    assert same.kl == 0
    assert 0 < other.kl < 0.01
    assert exact.asked == [*parts, *parts]
