"""Each filter against a plain reference that sorts everything, in float64."""

import math

import numpy as np
import pytest

from edge_runtime.generation.distribution import (
    Whole,
    ids_at_least,
    ids_of_highest,
    locate,
    rising_order,
)
from edge_runtime.generation.logits_processors import (
    SeenTokens,
    add_logit_bias,
    likeliest,
    min_p,
    penalize_presence_and_frequency,
    penalize_repetition,
    top_p,
    typical,
    within_min_p,
    within_top_p,
    within_typical,
)


def whole(logits, temperature=1.0):
    logits = np.asarray(logits, np.float32)
    return Whole(logits, logits.max(), temperature, np.empty_like(logits))


def probabilities(logits, temperature=1.0):
    scaled = np.asarray(logits, np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    return weights / weights.sum()


def fewest_reaching(order, p, mass):
    return set(order[: int((np.cumsum(p[order]) < mass).sum()) + 1].tolist())


def reference_top_p(p, mass):
    return fewest_reaching(np.argsort(-p, kind="stable"), p, mass)


def reference_typical(p, mass):
    information = -np.log(p)
    entropy = (p * information).sum()
    return fewest_reaching(np.argsort(np.abs(information - entropy), kind="stable"), p, mass)


def assert_same_set(found, expected, p):
    """Equal, but for one token at the cut, where float32 may round to the other side."""
    different = set(found.tolist()) ^ expected
    assert len(different) <= 1
    assert p[list(different)].sum() < 1e-4 + p.max() * 1e-6


def distributions():
    """Peaked, usual, heavy-tailed and nearly flat ones, over vocabularies of awkward sizes."""
    random = np.random.default_rng(7)
    for size in (2, 33, 1000, 20011):
        for spread in (0.01, 2.0, 10.0):
            yield (random.normal(size=size) * spread).astype(np.float32)
            yield (-spread * np.log1p(random.permutation(size))).astype(np.float32)


def each_distribution(function):
    cases = [pytest.param(d, id=f"{i}-{d.size}") for i, d in enumerate(distributions())]
    return pytest.mark.parametrize("logits", cases)(function)


@each_distribution
@pytest.mark.parametrize("mass", [0.1, 0.5, 0.95, 0.999])
def test_top_p_keeps_the_fewest_likeliest_tokens_that_reach_p(logits, mass):
    p = probabilities(logits, 0.7)
    kept = top_p(within_top_p(whole(logits, 0.7), mass), mass)
    assert_same_set(kept.token_ids, reference_top_p(p, mass), p)


@each_distribution
@pytest.mark.parametrize("mass", [0.1, 0.5, 0.95, 0.999])
def test_typical_keeps_the_fewest_tokens_nearest_the_entropy_that_reach_the_mass(logits, mass):
    p = probabilities(logits, 1.3)
    kept = typical(within_typical(whole(logits, 1.3), mass), mass)
    expected = reference_typical(p, mass)
    # Many tokens may be equally near within float32, so the mass and the count are compared.
    assert abs(p[kept.token_ids].sum() - p[list(expected)].sum()) < 2 * p.max() * 0.01 + 1e-4
    assert abs(kept.token_ids.size - len(expected)) <= max(1, 0.002 * len(expected))


@each_distribution
@pytest.mark.parametrize("share", [0.001, 0.05, 0.4, 1.0])
def test_min_p_keeps_tokens_down_to_a_share_of_the_likeliest(logits, share):
    p = probabilities(logits)
    kept = min_p(within_min_p(whole(logits), share, part_of=None), share)
    assert_same_set(kept.token_ids, set(np.flatnonzero(p >= share * p.max()).tolist()), p)


@each_distribution
@pytest.mark.parametrize("k", [1, 2, 40, 700])
def test_likeliest_keeps_exactly_k_with_their_weights(logits, k):
    kept = likeliest(whole(logits, 0.5), k)
    expected = np.argsort(-logits, kind="stable")[:k]
    assert set(kept.token_ids.tolist()) == set(expected.tolist())
    p = probabilities(logits, 0.5)[kept.token_ids]
    np.testing.assert_allclose(
        kept.weights / kept.weights.sum(), p / p.sum(), rtol=1e-4, atol=1e-12
    )


@each_distribution
def test_top_p_judges_what_top_k_left_renormalized(logits):
    p = probabilities(logits)
    first = np.argsort(-logits, kind="stable")[:20]
    renormalized = np.zeros_like(p)
    renormalized[first] = p[first] / p[first].sum()
    kept = top_p(likeliest(whole(logits), 20), 0.8)
    assert_same_set(kept.token_ids, reference_top_p(renormalized, 0.8), renormalized)


@each_distribution
def test_min_p_after_top_p_is_both_cuts_in_either_order(logits):
    p = probabilities(logits)
    given = whole(logits)
    kept = min_p(top_p(within_min_p(given, 0.1, part_of=given), 0.7), 0.1)
    expected = reference_top_p(p, 0.7) & set(np.flatnonzero(p >= 0.1 * p.max()).tolist())
    assert_same_set(kept.token_ids, expected, p)


@each_distribution
def test_whole_total_and_entropy_are_those_of_float64(logits):
    p = probabilities(logits, 0.9)
    given = whole(logits, 0.9)
    exact = -(p * np.log(np.maximum(p, 1e-300))).sum()
    assert given.total == pytest.approx(1 / p.max(), rel=1e-5)
    assert given.entropy == pytest.approx(exact, abs=1e-4)


def test_among_equals_the_lowest_ids_are_kept():
    logits = np.zeros(5000, np.float32)
    assert set(likeliest(whole(logits), 3).token_ids.tolist()) == {0, 1, 2}
    kept = top_p(within_top_p(whole(logits), 0.0011), 0.0011)
    assert set(kept.token_ids.tolist()) == set(range(6))


def test_every_filter_keeps_one_token_at_least():
    logits = np.array([0.0, 50.0, 0.0], np.float32)
    given = whole(logits)
    assert top_p(within_top_p(given, 1e-9), 1e-9).token_ids.tolist() == [1]
    assert min_p(within_min_p(given, 1.0, part_of=None), 1.0).token_ids.tolist() == [1]
    assert typical(within_typical(given, 1e-9), 1e-9).token_ids.tolist() == [1]


def test_masked_tokens_are_never_kept_by_a_filter_that_can_do_without():
    logits = np.full(1000, -np.inf, np.float32)
    logits[[10, 20, 30]] = 1.0
    for kept in (
        top_p(within_top_p(whole(logits), 0.99), 0.99),
        min_p(within_min_p(whole(logits), 0.01, part_of=None), 0.01),
        typical(within_typical(whole(logits), 0.99), 0.99),
    ):
        assert set(kept.token_ids.tolist()) == {10, 20, 30}


@each_distribution
@pytest.mark.parametrize("count", [1, 5, 64, 300, 10**6])
def test_ids_of_highest_are_the_highest_and_all_equal_to_their_lowest(logits, count):
    rounded = np.round(logits, 1)  # makes ties
    lowest = np.sort(rounded)[::-1][min(count, rounded.size) - 1]
    np.testing.assert_array_equal(ids_of_highest(rounded, count), np.flatnonzero(rounded >= lowest))


@each_distribution
def test_ids_at_least_are_all_that_reach_the_floor_in_rising_order(logits):
    for floor in np.quantile(logits, [0.0, 0.5, 0.99, 1.0]).astype(np.float32):
        np.testing.assert_array_equal(ids_at_least(logits, floor), np.flatnonzero(logits >= floor))


def test_ids_in_the_rest_of_a_folded_vocabulary_are_found():
    logits = np.zeros(20_011, np.float32)
    logits[[3, 20_005, 20_010]] = [9, 8, 7]
    np.testing.assert_array_equal(ids_of_highest(logits, 3), [3, 20_005, 20_010])
    np.testing.assert_array_equal(ids_at_least(logits, np.float32(8)), [3, 20_005])


def test_typical_reaches_below_the_mass_bound_where_the_likeliest_token_is_the_odd_one():
    # One token of p = 0.3 among 20,000 equal ones: each of those tells about what is expected.
    logits = np.zeros(20_001, np.float32)
    logits[7] = np.log(0.3 / 0.7 * 20_000)
    kept = typical(within_typical(whole(logits), 0.1), 0.1)
    assert 7 not in kept.token_ids
    assert kept.token_ids.size == pytest.approx(0.1 / 0.7 * 20_000, rel=0.01)


def test_rising_order_is_that_of_a_stable_sort():
    values = np.random.default_rng(1).integers(0, 50, 3000).astype(np.float32) / 7
    values[5] = np.inf
    np.testing.assert_array_equal(
        rising_order(values.view(np.uint32)), np.argsort(values, kind="stable")
    )


@pytest.mark.parametrize("size", [1, 2047, 2048, 2049, 30_001])
def test_locate_finds_what_one_running_sum_finds(size):
    random = np.random.default_rng(size)
    weights = (random.random(size) * (random.random(size) < 0.5)).astype(np.float32)
    weights[size // 2] = 1.0
    cumulated = np.cumsum(weights, dtype=np.float64)
    for fraction in (0.0, 0.1, 0.5, 0.9, 0.999):
        target = fraction * cumulated[-1]
        index = locate(weights, target, side="right")
        assert weights[index] > 0
        assert cumulated[index] > target - 1e-3
        assert cumulated[index] - weights[index] <= target + 1e-3


def test_locate_passes_over_what_has_no_weight():
    weights = np.zeros(9000, np.float32)
    weights[8000] = 1
    assert locate(weights, 0.0, side="right") == 8000
    assert locate(weights, 0.5, side="left") == 8000


def test_locate_beyond_the_sum_is_the_last_index_with_any_weight():
    weights = np.zeros(5000, np.float32)
    weights[[3, 2500]] = 1
    assert locate(weights, 9.0, side="right") == 2500
    assert locate(weights, 2.0, side="right") == 2500


def test_repetition_penalty_makes_seen_tokens_less_likely_whatever_their_sign():
    logits = np.array([2.0, -2.0, 0.0, 3.0, -np.inf], np.float32)
    penalize_repetition(logits, np.array([0, 1, 2, 4]), 2.0)
    np.testing.assert_array_equal(logits, np.array([1.0, -4.0, 0.0, 3.0, -np.inf], np.float32))


def test_presence_counts_once_and_frequency_each_time_and_the_prompt_not_at_all():
    logits = np.zeros(4, np.float32)
    counts = np.array([0, 1, 3], np.float32)
    penalize_presence_and_frequency(logits, np.array([0, 1, 2]), counts, 0.5, 0.25)
    np.testing.assert_array_equal(logits, np.array([0.0, -0.75, -1.25, 0.0], np.float32))


def test_logit_bias_is_added_to_the_named_tokens():
    logits = np.array([1.0, 1.0, 1.0], np.float32)
    add_logit_bias(logits, np.array([2, 0]), np.array([5.0, -1.5], np.float32))
    np.testing.assert_array_equal(logits, np.array([-0.5, 1.0, 6.0], np.float32))


def test_seen_tokens_are_distinct_and_count_generated_ones_only():
    seen = SeenTokens([7, 3, 7])
    for token in [3, 9, 9, *range(100, 400)]:
        seen.add(token)
    counted = dict(zip(seen.ids.tolist(), seen.counts.tolist(), strict=True))
    assert len(seen.ids) == len(counted) == 303
    assert (counted[7], counted[3], counted[9], counted[399]) == (0, 1, 2, 1)


def test_a_distribution_at_the_floor_of_float32_has_a_finite_entropy():
    given = whole([0.0, -1e4, -np.inf])
    assert given.entropy == pytest.approx(0.0, abs=1e-6)
    assert math.isfinite(given.total)
