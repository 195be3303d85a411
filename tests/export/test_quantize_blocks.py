import numpy as np
import onnx
import pytest
from edge_export.quantize.blocks import BlockQuantized, concatenate
from onnx import TensorProto, helper, numpy_helper

N, K = 24, 256


def random_blocks(
    *, bits: int, block_size: int = 32, zero_points: bool, seed: int = 0, columns: int = K
) -> BlockQuantized:
    rng = np.random.default_rng(seed)
    blocks = columns // block_size
    top = 1 << bits
    return BlockQuantized.from_codes(
        rng.integers(0, top, (N, blocks, block_size), np.uint8),
        rng.uniform(-0.1, 0.1, (N, blocks)).astype(np.float32),  # ggml's scales may be negative
        bits=bits,
        zero_points=rng.integers(0, top, (N, blocks), np.uint8) if zero_points else None,
    )


def expected_values(weights: BlockQuantized) -> np.ndarray:
    """(code - zero point) * scale, one value at a time, straight from the operator's text."""
    result = np.zeros(weights.shape, np.float32)
    per_byte = 8 // weights.bits
    mask = (1 << weights.bits) - 1
    for row in range(weights.shape[0]):
        for column in range(weights.shape[1]):
            block, inside = divmod(column, weights.block_size)
            byte = int(weights.values[row, block, inside // per_byte])
            code = byte >> (inside % per_byte * weights.bits) & mask
            point = 1 << (weights.bits - 1)
            if weights.zero_points is not None:
                packed = int(weights.zero_points[row, block // per_byte])
                point = packed >> (block % per_byte * weights.bits) & mask
            result[row, column] = np.float32(code - point) * weights.scales[row, block]
    return result


def run_graph(
    node: onnx.NodeProto, weights: dict[str, np.ndarray], feeds: dict[str, np.ndarray]
) -> np.ndarray:
    ort = pytest.importorskip("onnxruntime")
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
        )
        for name, value in feeds.items()
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    stored = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph([node], "one", inputs, [output], stored)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


def operator_inputs(weights: BlockQuantized) -> dict[str, np.ndarray]:
    stored = {"b": weights.values, "scales": weights.scales}
    if weights.zero_points is not None:
        stored["zero_points"] = weights.zero_points
    return stored


CASES = pytest.mark.parametrize(
    ("bits", "zero_points", "block_size"),
    [(b, z, s) for b in (4, 8) for z in (False, True) for s in (16, 32, 64)],
)


@CASES
def test_dequantize_follows_the_operators_formula(bits, zero_points, block_size):
    weights = random_blocks(bits=bits, zero_points=zero_points, block_size=block_size)
    assert np.array_equal(weights.dequantize(), expected_values(weights))


@CASES
def test_onnxruntime_multiplies_by_the_same_values(bits, zero_points, block_size):
    weights = random_blocks(bits=bits, zero_points=zero_points, block_size=block_size)
    stored = operator_inputs(weights)
    node = helper.make_node(
        "MatMulNBits",
        ["a", *stored],
        ["y"],
        domain="com.microsoft",
        K=K,
        N=N,
        bits=bits,
        block_size=block_size,
        accuracy_level=0,
    )
    rows = np.eye(K, dtype=np.float32)
    np.testing.assert_allclose(
        run_graph(node, stored, {"a": rows}), weights.dequantize().T, rtol=1e-5, atol=1e-6
    )


# An even number of blocks a row: onnxruntime 1.23 reads packed zero points of an odd one wrongly.
@CASES
def test_onnxruntime_gathers_rows_of_the_same_values(bits, zero_points, block_size):
    weights = random_blocks(bits=bits, zero_points=zero_points, block_size=block_size)
    stored = operator_inputs(weights)
    stored["b"] = weights.values.reshape(N, K * bits // 8)
    names = ["b", "ids", "scales", *(["zero_points"] if zero_points else [])]
    node = helper.make_node(
        "GatherBlockQuantized",
        names,
        ["y"],
        domain="com.microsoft",
        gather_axis=0,
        quantize_axis=1,
        block_size=block_size,
        bits=bits,
    )
    ids = np.array([[3, 0, N - 1]], np.int64)
    gathered = run_graph(node, stored, {"ids": ids})
    np.testing.assert_allclose(gathered, weights.dequantize()[ids], rtol=1e-6, atol=1e-7)


@CASES
def test_int8_compute_follows_the_values_too(bits, zero_points, block_size):
    weights = random_blocks(bits=bits, zero_points=zero_points, block_size=block_size)
    stored = operator_inputs(weights)
    node = helper.make_node(
        "MatMulNBits",
        ["a", *stored],
        ["y"],
        domain="com.microsoft",
        K=K,
        N=N,
        bits=bits,
        block_size=block_size,
        accuracy_level=4,
    )
    rows = np.eye(K, dtype=np.float32)  # one value a block is exact in int8
    np.testing.assert_allclose(
        run_graph(node, stored, {"a": rows}), weights.dequantize().T, rtol=1e-2, atol=1e-3
    )


def test_an_odd_number_of_blocks_pads_the_packed_zero_points():
    weights = random_blocks(bits=4, zero_points=True, columns=96)
    assert weights.zero_points is not None
    assert weights.zero_points.shape == (N, 2)
    assert np.array_equal(weights.dequantize(), expected_values(weights))


def test_rows_are_permuted_with_their_scales_and_zero_points():
    weights = random_blocks(bits=4, zero_points=True)
    index = np.random.default_rng(1).permutation(N)
    assert np.array_equal(weights.permute_rows(index).dequantize(), weights.dequantize()[index])


@pytest.mark.parametrize("zero_points", [False, True])
def test_smaller_blocks_and_more_bits_keep_every_value(zero_points):
    weights = random_blocks(bits=4, zero_points=zero_points)
    changed = weights.with_block_size(16).in_8_bits()
    assert (changed.bits, changed.block_size) == (8, 16)
    assert (changed.zero_points is None) == (not zero_points)
    assert np.array_equal(changed.dequantize(), weights.dequantize())


def test_unlike_parts_concatenate_to_what_holds_them_all():
    parts = [
        random_blocks(bits=4, zero_points=True, seed=1),
        random_blocks(bits=8, block_size=16, zero_points=False, seed=2),
    ]
    joined = concatenate(parts)
    assert (joined.bits, joined.block_size, joined.shape) == (8, 16, (2 * N, K))
    values = np.concatenate([part.dequantize() for part in parts])
    assert np.array_equal(joined.dequantize(), values)


def test_like_parts_concatenate_without_growing():
    parts = [random_blocks(bits=4, zero_points=False, seed=seed) for seed in (1, 2)]
    joined = concatenate(parts)
    assert joined.zero_points is None
    assert joined.nbytes == sum(part.nbytes for part in parts)


def test_parts_of_different_widths_are_refused():
    with pytest.raises(ValueError, match=r"\[96, 256\]"):
        concatenate(
            [
                random_blocks(bits=4, zero_points=False),
                random_blocks(bits=4, zero_points=False, columns=96),
            ]
        )


@pytest.mark.parametrize(
    "wrong",
    [
        {"bits": 3},
        {"block_size": 24},
        {"scales": np.zeros((N, 7), np.float32)},
        {"zero_points": np.zeros((N, 8), np.float32)},
    ],
)
def test_arrays_that_do_not_fit_one_another_are_refused(wrong):
    good = random_blocks(bits=8, zero_points=False)
    fields = {"bits": 8, "block_size": 32, "values": good.values, "scales": good.scales, **wrong}
    with pytest.raises(ValueError):
        BlockQuantized(**fields)
