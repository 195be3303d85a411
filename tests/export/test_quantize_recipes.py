from dataclasses import dataclass

import numpy as np
import pytest
from edge_export.quantize.recipes import add_stats, quantize_tensor
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from support.tiny_gguf import random_matrix

from edge_runtime.errors import SourceFormatError, UnsupportedModelError


@dataclass
class StoredTensor:
    """A tensor held as bytes that remembers the most rows ever asked for at once."""

    stored: np.ndarray
    kind: str
    columns: int
    name: str = "blk.0.ffn_up.weight"
    most_rows: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.stored), self.columns)

    @property
    def row_count(self) -> int:
        return len(self.stored)

    @property
    def size_bytes(self) -> int:
        return self.stored.nbytes

    def raw_rows(self, start: int, stop: int) -> np.ndarray:
        self.most_rows = max(self.most_rows, stop - start)
        return self.stored[start:stop].view(np.uint8)

    def rows(self, start: int, stop: int) -> np.ndarray:
        raw = self.raw_rows(start, stop)
        with np.errstate(all="ignore"):
            return dequantize(raw, GGMLQuantizationType[self.kind]).astype(np.float32)

    def array(self) -> np.ndarray:
        return self.rows(0, self.row_count)

    def release(self) -> None:
        pass


def stored_tensor(kind: str, rows: int = 48, columns: int = 512) -> StoredTensor:
    stored, _ = random_matrix(np.random.default_rng(0), kind, rows, columns)
    return StoredTensor(stored, kind, columns)


@pytest.mark.parametrize(
    ("kind", "recipe", "stored_as"),
    [
        ("Q4_0", "auto", "4-bit block 32"),
        ("Q4_0", "int8", "8-bit block 32"),
        ("Q4_0", "int4", "4-bit block 32"),
        ("Q8_0", "auto", "8-bit block 32"),
        ("Q8_0", "int8", "8-bit block 32"),
        ("Q8_0", "int4", "4-bit block 32 with zero points"),
        ("Q5_0", "auto", "8-bit block 32"),
        ("Q6_K", "auto", "8-bit block 16"),
        ("Q6_K", "int4", "4-bit block 32 with zero points"),
        ("Q4_1", "auto", "8-bit block 32 with zero points"),
        ("Q4_K", "int8", "8-bit block 32 with zero points"),
        ("Q4_K", "int4", "4-bit block 32 with zero points"),
        ("Q3_K", "auto", "8-bit block 32 with zero points"),
        ("IQ4_XS", "auto", "8-bit block 32 with zero points"),
        ("BF16", "auto", "8-bit block 32 with zero points"),
        ("F16", "int4", "4-bit block 32 with zero points"),
        ("F32", "int8", "8-bit block 32 with zero points"),
    ],
)
def test_a_recipe_decides_how_a_kind_is_stored(kind, recipe, stored_as):
    tensor = stored_tensor(kind)
    quantized, stats = quantize_tensor(tensor, recipe=recipe)
    assert stats.stored_as == stored_as
    assert stats.source_kind == kind
    assert (stats.source_bytes, stats.stored_bytes) == (tensor.size_bytes, quantized.nbytes)
    values = tensor.array().astype(np.float64)
    error = np.linalg.norm(quantized.dequantize() - values) / np.linalg.norm(values)
    assert stats.relative_error == pytest.approx(error, rel=1e-3, abs=1e-9)
    assert error < (0.1 if quantized.bits == 4 else 0.01)


@pytest.mark.parametrize("kind", ["Q4_0", "Q5_0", "Q8_0", "Q6_K"])
@pytest.mark.parametrize("recipe", ["auto", "int8"])
def test_what_fits_exactly_loses_nothing(kind, recipe):
    tensor = stored_tensor(kind)
    quantized, stats = quantize_tensor(tensor, recipe=recipe)
    assert np.array_equal(quantized.dequantize(), tensor.array())
    assert stats.relative_error == 0


def test_the_embedding_has_bits_of_its_own_under_int4():
    tensor = stored_tensor("Q8_0")
    eight, _ = quantize_tensor(tensor, recipe="int4", role="embedding")
    four, _ = quantize_tensor(tensor, recipe="int4", role="embedding", embedding_bits=4)
    assert (eight.bits, four.bits) == (8, 4)
    assert np.array_equal(eight.dequantize(), tensor.array())


def test_a_4_bit_table_with_an_odd_number_of_blocks_has_no_zero_points():
    tensor = stored_tensor("F32", columns=96)
    table, _ = quantize_tensor(tensor, recipe="int4", role="embedding", embedding_bits=4)
    linear, _ = quantize_tensor(tensor, recipe="int4")
    assert table.zero_points is None
    assert linear.zero_points is not None


def test_symmetric_is_asked_for():
    quantized, stats = quantize_tensor(stored_tensor("F32"), recipe="int4", symmetric=True)
    assert quantized.zero_points is None
    assert stats.stored_as == "4-bit block 32"


@pytest.mark.parametrize("recipe", ["auto", "int8", "int4"])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "F32"])
def test_slices_give_what_the_whole_gives(kind, recipe):
    tensor = stored_tensor(kind)
    whole, whole_stats = quantize_tensor(tensor, recipe=recipe)
    tensor.most_rows = 0
    sliced, stats = quantize_tensor(tensor, recipe=recipe, rows_per_slice=7)
    assert tensor.most_rows == 7
    assert np.array_equal(sliced.dequantize(), whole.dequantize())
    assert stats.squared_error == pytest.approx(whole_stats.squared_error, rel=1e-5)


def test_a_large_tensor_is_sliced_without_being_asked():
    tensor = stored_tensor("Q4_0", rows=3000, columns=1024)
    quantize_tensor(tensor, recipe="auto")
    assert tensor.most_rows * tensor.columns * 4 <= 8 << 20


def test_rows_of_16_get_blocks_of_16():
    quantized, _ = quantize_tensor(stored_tensor("F32", columns=48), recipe="int8")
    assert quantized.block_size == 16


def test_rows_that_no_block_divides_are_refused_by_name():
    with pytest.raises(UnsupportedModelError, match=r"'blk\.0\.ffn_up\.weight'.* 50 values"):
        quantize_tensor(stored_tensor("F32", columns=50), recipe="int8")


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("recipe", ["auto", "int4"])
def test_a_weight_that_is_no_number_names_its_tensor_and_row(bad, recipe):
    tensor = stored_tensor("F16")
    tensor.stored[31, 5] = bad
    with pytest.raises(SourceFormatError, match=r"'blk\.0\.ffn_up\.weight'.* row 31"):
        quantize_tensor(tensor, recipe=recipe, rows_per_slice=10)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_a_scale_that_is_no_number_names_its_tensor_and_row(kind):
    tensor = stored_tensor(kind)
    tensor.stored[12, :2] = np.array([np.inf], "<f2").view(np.uint8)
    with pytest.raises(SourceFormatError, match=r"row 12"):
        quantize_tensor(tensor, recipe="auto")


def test_stats_add_up_to_a_group():
    parts = [quantize_tensor(stored_tensor(kind), recipe="auto")[1] for kind in ("Q4_1", "Q8_0")]
    group = add_stats([*parts, parts[1]]).as_group("linear")
    assert group.tensors == 3
    assert group.source_kind == "Q4_1, Q8_0"
    assert group.stored_as == "8-bit block 32 with zero points, 8-bit block 32"
    assert group.stored_bytes == parts[0].stored_bytes + 2 * parts[1].stored_bytes
    expected = parts[0].squared_error / (parts[0].squared_norm + 2 * parts[1].squared_norm)
    assert group.relative_error == pytest.approx(np.sqrt(expected))
