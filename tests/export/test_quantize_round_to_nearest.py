import numpy as np
import pytest
from edge_export.quantize.round_to_nearest import round_to_8_bits, search_4_bits
from support.tiny_gguf import random_matrix


def weights(rows: int = 64, columns: int = 192, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


def relative_error(got: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


def between_extremes(values: np.ndarray, block_size: int) -> np.ndarray:
    """Plain 4-bit rounding, the method that the search has to beat."""
    blocks = values.reshape(-1, block_size)
    low, high = np.minimum(blocks.min(1), 0), np.maximum(blocks.max(1), 0)
    scale = ((high - low) / 15)[:, None]
    point = np.rint(-low[:, None] / scale)
    codes = np.clip(np.rint(blocks / scale) + point, 0, 15)
    return ((codes - point) * scale).reshape(values.shape)


@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_8_bits_stay_within_half_a_step(block_size):
    values = weights()
    blocks = values.reshape(-1, block_size)
    step = (np.maximum(blocks.max(1), 0) - np.minimum(blocks.min(1), 0)) / 255
    error = np.abs(round_to_8_bits(values, block_size=block_size).dequantize() - values)
    # The zero point is whole, which can cost the extremes another half step.
    assert (error.reshape(blocks.shape) <= 1.01 * step[:, None]).all()
    assert relative_error(values + error, values) < 0.006


# Requantizing an already 4-bit file is the hard case, where the search gains most.
@pytest.mark.parametrize(("kind", "gain"), [("F32", 0.97), ("Q4_1", 0.9)])
def test_the_search_beats_rounding_between_extremes(kind, gain):
    _, values = random_matrix(np.random.default_rng(0), kind, 64, 192)
    plain = relative_error(between_extremes(values, 32), values)
    searched = search_4_bits(values, block_size=32)
    assert (searched.bits, searched.block_size) == (4, 32)
    assert searched.zero_points is not None
    assert relative_error(searched.dequantize(), values) < gain * plain


def test_symmetric_blocks_store_no_zero_points_and_beat_plain_symmetric_rounding():
    values = weights()
    searched = search_4_bits(values, block_size=32, symmetric=True)
    assert searched.zero_points is None
    blocks = values.reshape(-1, 32)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(1)[:, None], 1)
    scale = largest / -8
    plain = (np.clip(np.rint(blocks / scale), -8, 7) * scale).reshape(values.shape)
    assert relative_error(searched.dequantize(), values) < 0.95 * relative_error(plain, values)


@pytest.mark.parametrize("symmetric", [False, True])
def test_important_columns_get_the_smaller_error(symmetric):
    values = weights()
    importance = np.where(np.arange(192) % 32 < 4, 100, 1).astype(np.float32)

    def weighted_error(**how) -> float:
        got = search_4_bits(values, block_size=32, symmetric=symmetric, **how).dequantize()
        return float((importance * (got - values) ** 2).sum())

    assert weighted_error(importance=importance) < 0.8 * weighted_error()


@pytest.mark.parametrize("value", [0.0, 0.7, -0.7, 1e-40, 1e-20, 3e38, -3e38])
def test_constant_blocks_keep_their_value(value):
    values = np.full((3, 64), value, np.float32)
    for quantized in (
        round_to_8_bits(values, block_size=32),
        search_4_bits(values, block_size=32),
        search_4_bits(values, block_size=32, symmetric=True),
    ):
        assert np.isfinite(quantized.scales).all()
        np.testing.assert_allclose(quantized.dequantize(), values, rtol=1e-6, atol=1e-30)


def test_every_block_size_and_any_number_of_rows_gives_the_same_blocks():
    values = weights(rows=1500, columns=96)
    whole = search_4_bits(values, block_size=32)
    part = search_4_bits(values[700:900], block_size=32)
    assert np.array_equal(whole.dequantize()[700:900], part.dequantize())


def test_rows_that_are_no_whole_blocks_are_refused():
    with pytest.raises(ValueError, match="rows of 100"):
        round_to_8_bits(weights(columns=100), block_size=32)
