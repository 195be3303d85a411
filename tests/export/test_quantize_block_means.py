"""4-bit kinds with a float minimum stay in 4 bits, and the minimum comes along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from edge_export.pipeline import ExportOptions, export_model
from edge_export.portable_graphs import PortableRequest
from edge_export.quantize.block_means import carry_with_means
from edge_export.quantize.blocks import concatenate
from gguf import GGUFReader
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from support.tiny_gguf import write_tiny_gguf

from edge_runtime.engine.engine import Engine, EngineOptions
from edge_runtime.errors import UsageError

F32 = np.ndarray[Any, np.dtype[np.float32]]


def _q4_1(values: F32) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], F32]:
    raw = quantize(values, GGMLQuantizationType.Q4_1)
    return raw, dequantize(raw, GGMLQuantizationType.Q4_1)


@pytest.mark.parametrize("columns", [32, 96, 576, 1536])
def test_offsets_are_met_to_a_small_part_of_a_step(columns: int):
    raw, source = _q4_1(np.random.default_rng(0).normal(size=(64, columns)).astype(np.float32))
    blocks = carry_with_means(raw, "Q4_1")
    assert blocks.bits == 4
    assert blocks.shape == source.shape
    step = np.abs(source).max() * 2 / 15
    error = np.sqrt(np.mean((blocks.dequantize() - source) ** 2))
    # An integral zero point alone leaves 0.29 of a step.
    assert error < 0.04 * step


def test_a_block_of_one_value_keeps_it():
    raw, source = _q4_1(np.full((2, 64), 0.75, np.float32))
    np.testing.assert_allclose(carry_with_means(raw, "Q4_1").dequantize(), source, rtol=1e-5)


def test_a_row_of_zeros_stays_zero():
    raw, _ = _q4_1(np.zeros((2, 64), np.float32))
    assert not carry_with_means(raw, "Q4_1").dequantize().any()


def test_rows_can_be_stacked_and_put_in_another_order():
    raw, _ = _q4_1(np.random.default_rng(1).normal(size=(6, 64)).astype(np.float32))
    blocks = carry_with_means(raw, "Q4_1")
    order = np.array([5, 0, 3, 1, 2, 4])
    both = concatenate([blocks, blocks.permute_rows(order)]).dequantize()
    np.testing.assert_array_equal(both[:6], blocks.dequantize())
    np.testing.assert_array_equal(both[6:], blocks.dequantize()[order])


def test_forms_that_have_no_place_for_offsets_are_refused():
    raw, _ = _q4_1(np.ones((2, 64), np.float32))
    blocks = carry_with_means(raw, "Q4_1")
    with pytest.raises(ValueError, match="offsets"):
        blocks.in_8_bits()
    with pytest.raises(ValueError, match="cannot be cut"):
        blocks.with_block_size(16)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("means") / "tiny.gguf"
    write_tiny_gguf(path, kind="Q4_1", embedding_kind="Q8_0", biases=True)
    return path


def _scores(bundle: Path) -> F32:
    with Engine.load(bundle) as engine:
        return np.concatenate(list(engine.score([5, 9, 7, 6, 11, 8])))


def test_a_model_in_4_bits_is_as_near_to_its_source_as_in_8(source: Path, tmp_path: Path):
    scores = {
        recipe: _scores(
            export_model(source, tmp_path / recipe, ExportOptions(quant=recipe)).bundle_path
        )
        for recipe in ("f32", "int8", "int4-exact")
    }
    error = {name: np.abs(value - scores["f32"]).max() for name, value in scores.items()}
    assert error["int4-exact"] < 2 * error["int8"]


def test_the_graph_holds_4_bit_products_with_their_further_inputs(source: Path, tmp_path: Path):
    made = export_model(source, tmp_path / "bundle", ExportOptions(quant="int4-exact"))
    model = onnx.load(str(made.bundle_path / "decoder.onnx"), load_external_data=False)
    products = [node for node in model.graph.node if node.op_type == "MatMulNBits"]
    bits = [next(a.i for a in node.attribute if a.name == "bits") for node in products]
    assert bits.count(8) == 1  # the head, which shares the table that ids are looked up in
    assert sum(node.op_type == "ReduceMean" for node in model.graph.node) == bits.count(4)
    groups = {group.name: group.stored_as for group in made.manifest.quantization.groups}
    assert groups["down"] == "4-bit block 32 with zero points and offsets"


def test_a_prompt_of_several_chunks_is_read(source: Path, tmp_path: Path):
    # Of all chunks but the last no logits are wanted: the last layer then has no rows.
    options = ExportOptions(quant="int4-exact")
    bundle = export_model(source, tmp_path / "bundle", options).bundle_path
    with Engine.load(bundle, EngineOptions(chunk_size=4)) as engine:
        params = engine.default_params(temperature=0.0, max_tokens=3, ignore_eos=True)
        assert len(list(engine.generate_tokens([5, 9, 7, 6, 11, 8] * 2, params))) == 3


def test_other_dialects_refuse_it(source: Path, tmp_path: Path):
    options = ExportOptions(
        quant="int4-exact", portable=(PortableRequest(("TensorrtExecutionProvider",)),)
    )
    with pytest.raises(UsageError, match="no portable form"):
        export_model(source, tmp_path / "bundle", options)


@pytest.mark.model
def test_the_real_files_weights_lose_under_a_hundredth(real_source: Path):
    reader = GGUFReader(real_source)
    tensor = next(t for t in reader.tensors if t.name == "blk.3.ffn_down.weight")
    exact = dequantize(tensor.data, tensor.tensor_type)
    carried = carry_with_means(np.array(tensor.data), tensor.tensor_type.name).dequantize()
    assert np.linalg.norm(carried - exact) < 0.01 * np.linalg.norm(exact)
