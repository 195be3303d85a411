import numpy as np
import pytest
from edge_export.quantize import gptq
from edge_export.quantize.calibration import Moments
from edge_export.quantize.gptq import Compensation, compensated_4_bits
from edge_export.quantize.round_to_nearest import search_4_bits

RNG = np.random.default_rng


def correlated_inputs(tokens: int = 2000, columns: int = 128, seed: int = 0) -> np.ndarray:
    """Inputs as layers have them: few directions carry most, and columns differ in size."""
    rng = RNG(seed)
    mix = rng.standard_normal((columns // 4, columns))
    x = rng.standard_normal((tokens, columns // 4)) @ mix / np.sqrt(columns // 4)
    x += 0.3 * rng.standard_normal((tokens, columns))
    return (x * np.exp(rng.standard_normal(columns))).astype(np.float32)


def weights(rows: int = 96, columns: int = 128, seed: int = 1) -> np.ndarray:
    return RNG(seed).standard_normal((rows, columns)).astype(np.float32)


def compensation(x: np.ndarray, y: np.ndarray | None = None) -> Compensation:
    drift = None if y is None else (y - x).T @ x
    made = Compensation.of(Moments(x.T @ x, drift, len(x)))
    assert made is not None
    return made


def output_error(w: np.ndarray, q: np.ndarray, x: np.ndarray) -> float:
    return float(np.linalg.norm(x @ (w - q).T) / np.linalg.norm(x @ w.T))


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("block_size", [32, 64, 128])
def test_the_output_of_unseen_inputs_errs_less_than_after_any_search(block_size, symmetric):
    x, w = correlated_inputs(), weights()
    x, unseen = x[:1000], x[1000:]
    how = {"block_size": block_size, "symmetric": symmetric}
    got = compensated_4_bits(w, compensation(x), **how)
    assert (got.bits, got.block_size, got.shape) == (4, block_size, w.shape)
    assert (got.zero_points is None) == symmetric
    weighted = search_4_bits(w, importance=np.square(x).mean(axis=0), **how)
    plain = search_4_bits(w, **how)
    error = output_error(w, got.dequantize(), unseen)
    assert error < 0.8 * output_error(w, weighted.dequantize(), unseen)
    assert error < 0.6 * output_error(w, plain.dequantize(), unseen)


def test_blocks_of_64_err_less_than_blocks_of_32_that_are_only_searched():
    x, w = correlated_inputs(), weights()
    got = compensated_4_bits(w, compensation(x), block_size=64)
    searched = search_4_bits(w, block_size=32)
    assert output_error(w, got.dequantize(), x) < output_error(w, searched.dequantize(), x)


def test_descent_lowers_the_error_that_rounding_left(monkeypatch):
    x, w = correlated_inputs(), weights()
    how = compensation(x)
    descended = compensated_4_bits(w, how, block_size=64).dequantize()
    monkeypatch.setattr(gptq, "_DESCENTS", 0)
    rounded = compensated_4_bits(w, how, block_size=64).dequantize()
    assert output_error(w, descended, x) < 0.99 * output_error(w, rounded, x)


def test_what_the_input_lost_is_made_up_for():
    y, w = correlated_inputs(), weights()
    x = y * np.float32(0.8)  # an earlier layer shrank everything
    aware = compensated_4_bits(w, compensation(x, y), block_size=64).dequantize()
    blind = compensated_4_bits(w, compensation(x), block_size=64).dequantize()

    def error(q: np.ndarray) -> float:
        return float(np.linalg.norm(y @ w.T - x @ q.T) / np.linalg.norm(y @ w.T))

    assert error(blind) > 0.19
    assert error(aware) < 0.5 * error(blind)


def test_rows_do_not_depend_on_each_other_and_results_do_not_vary():
    x, w = correlated_inputs(), weights()
    how = compensation(x)
    whole = compensated_4_bits(w, how, block_size=32)
    again = compensated_4_bits(w, how, block_size=32)
    part = compensated_4_bits(w[40:70], how, block_size=32)
    assert np.array_equal(whole.values, again.values)
    assert np.array_equal(whole.scales, again.scales)
    # Products of other shapes may add in another order, and turn a tie here and there.
    assert (whole.codes()[40:70] == part.codes()).mean() > 0.99


def test_columns_that_the_text_never_used_keep_near_their_values():
    x, w = correlated_inputs(), weights()
    x[:, 10:20] = 0
    got = compensated_4_bits(w, compensation(x), block_size=32).dequantize()
    assert np.isfinite(got).all()
    unused = slice(10, 20)
    assert np.linalg.norm((got - w)[:, unused]) < 0.3 * np.linalg.norm(w[:, unused])
    assert output_error(w, got, x) < 0.1


def test_inputs_of_fewer_tokens_than_columns_are_no_obstacle():
    x, w = correlated_inputs(tokens=5), weights()
    got = compensated_4_bits(w, compensation(x), block_size=32).dequantize()
    assert np.linalg.norm(got - w) < 0.2 * np.linalg.norm(w)


@pytest.mark.parametrize("scale", [0.0, 1e-40, 1e-20, 1e30])
def test_weights_and_inputs_of_any_size(scale):
    x, w = correlated_inputs(), weights()
    w[3] *= np.float32(scale)
    w[4] = 0
    how = compensation(x * np.float32(1e-6))
    got = compensated_4_bits(w, how, block_size=32)
    assert np.isfinite(got.scales).all()
    values = got.dequantize()
    assert (values[4] == 0).all()
    assert np.abs(values[3] - w[3]).max() <= 0.5 * np.abs(w[3]).max() + 1e-30


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_moments_that_tell_nothing_give_no_compensation(bad):
    second = np.full((32, 32), bad, np.float32)
    assert Compensation.of(Moments(second, None, 10)) is None


def test_a_damaged_drift_gives_no_compensation():
    second = np.eye(32, dtype=np.float32)
    assert Compensation.of(Moments(second, np.full((32, 32), np.nan, np.float32), 10)) is None


def test_very_wide_inputs_give_no_compensation(monkeypatch):
    monkeypatch.setattr(gptq, "LARGEST_WIDTH", 31)
    assert Compensation.of(Moments(np.eye(32, dtype=np.float32), None, 10)) is None


def test_rows_that_are_no_whole_blocks_are_refused():
    with pytest.raises(ValueError, match="rows of 128"):
        compensated_4_bits(weights(), compensation(correlated_inputs()), block_size=256)
