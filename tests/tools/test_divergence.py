from __future__ import annotations

import numpy as np
import pytest
from edge_tools.divergence import compare, log_softmax, summarize

NONE = np.array([-1, -1])


def logits_of(*rows: list[float]) -> np.ndarray:
    return np.log(np.array(rows, dtype=np.float32))


def test_equal_logits_diverge_by_nothing():
    logits = np.random.default_rng(0).normal(size=(4, 50)).astype(np.float32)
    result = summarize([compare(logits, logits.copy(), np.array([1, 2, 3, -1]))])
    assert result.tokens == 4
    assert result.kl == pytest.approx(0, abs=1e-7)
    assert result.top_1 == 1.0
    assert result.perplexity == pytest.approx(result.reference_perplexity)


def test_kl_is_the_formula_and_not_its_mirror():
    p, q = [0.5, 0.5], [0.9, 0.1]
    found = compare(logits_of(p), logits_of(q), NONE[:1])
    expected = 0.5 * np.log(0.5 / 0.9) + 0.5 * np.log(0.5 / 0.1)
    assert found.kl[0] == pytest.approx(expected, rel=1e-5)
    mirrored = compare(logits_of(q), logits_of(p), NONE[:1])
    assert mirrored.kl[0] != pytest.approx(expected, rel=1e-2)


def test_adding_a_constant_to_logits_changes_nothing():
    a = np.random.default_rng(1).normal(size=(2, 9)).astype(np.float32)
    found = compare(a, a + np.float32(30), NONE)
    np.testing.assert_allclose(found.kl, 0, atol=1e-5)


def test_top_1_counts_rows_where_the_likeliest_agree():
    reference = logits_of([0.6, 0.4], [0.6, 0.4])
    candidate = logits_of([0.7, 0.3], [0.3, 0.7])
    assert summarize([compare(reference, candidate, NONE)]).top_1 == 0.5


def test_perplexity_is_of_the_tokens_that_came_and_leaves_out_the_last():
    even = logits_of([0.25] * 4, [0.25] * 4)
    result = summarize([compare(even, even, np.array([2, -1]))])
    assert result.perplexity == pytest.approx(4.0, rel=1e-5)


def test_impossible_tokens_leave_kl_finite():
    reference = np.array([[0.0, -500.0]], dtype=np.float32)
    found = compare(reference, np.array([[0.0, -900.0]], dtype=np.float32), NONE[:1])
    assert np.isfinite(found.kl).all()


def test_probabilities_add_up_to_one():
    values = np.random.default_rng(2).normal(scale=20, size=(3, 1000)).astype(np.float32)
    np.testing.assert_allclose(np.exp(log_softmax(values)).sum(-1), 1, rtol=1e-5)


def test_different_shapes_are_an_error():
    with pytest.raises(ValueError, match="shapes"):
        compare(np.zeros((1, 3), np.float32), np.zeros((1, 4), np.float32), NONE[:1])
