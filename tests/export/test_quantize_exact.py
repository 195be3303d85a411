import numpy as np
import pytest
from edge_export.quantize.exact import EXACT_BITS, carry_exactly
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize


def random_stored(kind: str, rows: int, columns: int) -> np.ndarray:
    """Bytes of every value, scales included, except those that make a float16 infinite or NaN."""
    number = GGMLQuantizationType[kind]
    block, block_bytes = GGML_QUANT_SIZES[number]
    rng = np.random.default_rng(0)
    stored = rng.integers(0, 256, (rows, columns // block * block_bytes), np.uint8)
    with np.errstate(invalid="ignore"):
        scales = dequantize(stored, number).reshape(-1, block)
    finite = np.isfinite(scales).all(axis=1)
    blocks = stored.reshape(-1, block_bytes)
    blocks[~finite] = blocks[finite][0]
    return stored


@pytest.mark.parametrize("kind", EXACT_BITS)
def test_every_value_is_carried_bit_for_bit(kind):
    stored = random_stored(kind, rows=64, columns=512)
    carried = carry_exactly(stored, kind)
    assert carried.zero_points is None
    assert carried.bits == EXACT_BITS[kind]
    # Adding 0.0 drops the sign of zeros, the one difference allowed.
    expected = dequantize(stored, GGMLQuantizationType[kind]) + np.float32(0)
    got = carried.dequantize() + np.float32(0)
    assert np.array_equal(got.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize(
    ("kind", "bits", "block_size"),
    [("Q4_0", 4, 32), ("Q5_0", 8, 32), ("Q8_0", 8, 32), ("Q6_K", 8, 16)],
)
def test_a_kind_keeps_its_own_blocks(kind, bits, block_size):
    carried = carry_exactly(random_stored(kind, rows=2, columns=256), kind)
    assert (carried.bits, carried.block_size) == (bits, block_size)


def test_a_kind_with_a_float_minimum_does_not_carry():
    assert not {"Q4_1", "Q5_1", "Q4_K", "Q5_K"} & set(EXACT_BITS)
