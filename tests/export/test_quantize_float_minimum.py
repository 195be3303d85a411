import numpy as np
import pytest
from edge_export.quantize.float_minimum import FLOAT_MINIMUM_KINDS, carry_float_minimum
from edge_export.quantize.round_to_nearest import round_to_8_bits
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from support.tiny_gguf import random_matrix


def relative_error(got: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


def q4_1_block(step: float, minimum: float, codes: np.ndarray) -> np.ndarray:
    halves = np.array([step, minimum], "<f2").view(np.uint8)
    nibbles = codes[:16] | codes[16:] << 4
    return np.concatenate([halves, nibbles.astype(np.uint8)])[np.newaxis]


@pytest.mark.parametrize("kind", sorted(FLOAT_MINIMUM_KINDS))
def test_values_stay_within_a_small_part_of_the_sources_step(kind):
    stored, values = random_matrix(np.random.default_rng(0), kind, 64, 512)
    carried = carry_float_minimum(stored, kind)
    assert (carried.bits, carried.block_size) == (8, 16 if kind == "Q2_K" else 32)
    got = carried.dequantize()
    blocks = values.reshape(-1, carried.block_size)
    levels = 3 if kind == "Q2_K" else 31 if "5" in kind else 15
    step = (blocks.max(axis=1) - blocks.min(axis=1)) / levels
    error = np.sqrt(((got - values).reshape(blocks.shape) ** 2).mean())
    assert error < np.sqrt((step**2).mean()) / 32


@pytest.mark.parametrize("kind", ["Q4_1", "Q4_K"])
def test_the_sources_structure_beats_rounding_between_extremes(kind):
    stored, values = random_matrix(np.random.default_rng(1), kind, 64, 512)
    structured = relative_error(carry_float_minimum(stored, kind).dequantize(), values)
    rounded = relative_error(round_to_8_bits(values, block_size=32).dequantize(), values)
    assert structured < rounded / 2


def test_a_minimum_of_whole_steps_is_carried_exactly():
    stored = q4_1_block(0.25, -1.75, np.arange(32) % 16)
    expected = dequantize(stored, GGMLQuantizationType.Q4_1)
    assert np.array_equal(carry_float_minimum(stored, "Q4_1").dequantize(), expected)


def test_zero_and_constant_blocks_are_carried_exactly():
    codes = np.arange(32) % 16
    cases = [(0.0, 0.0, codes), (0.0, 0.3, codes), (0.0, -2.0, codes), (0.0, 6e-8, codes)]
    stored = np.concatenate([q4_1_block(*case) for case in cases])
    expected = dequantize(stored, GGMLQuantizationType.Q4_1)
    assert np.array_equal(carry_float_minimum(stored, "Q4_1").dequantize(), expected)


def test_blocks_far_from_zero_still_round_to_8_bits():
    codes = np.arange(32) % 16
    cases = [(0.001, 5.0, codes), (0.001, -5.0, codes), (0.5, -1.0, codes), (6e-8, 60000.0, codes)]
    stored = np.concatenate([q4_1_block(*case) for case in cases])
    expected = dequantize(stored, GGMLQuantizationType.Q4_1)
    got = carry_float_minimum(stored, "Q4_1").dequantize()
    np.testing.assert_allclose(got, expected, atol=0, rtol=1 / 500)


def test_a_negative_step_is_carried():
    stored = q4_1_block(-0.1, 0.8, np.arange(32) % 16)
    expected = dequantize(stored, GGMLQuantizationType.Q4_1)
    np.testing.assert_allclose(
        carry_float_minimum(stored, "Q4_1").dequantize(), expected, atol=0.1 / 32
    )
