"""A decoder over an int8 cache: its float graph, with every attention replaced.

A key or value is stored as ``round(x / scale)`` with a scale for each channel of each head. A few
new tokens are attended by GroupQueryAttention's own int8 form, which reads a quarter of the bytes.
That form is slow for a chunk of a prompt, so there the layer's held tokens are turned to float32
first, one layer at a time, and the float operator attends. It need not know the scales: queries are
multiplied by the keys' and the result by the values'. Either way all keys and values that are
attended, the new ones included, are those that the cache holds, so that how a prompt was cut does
not show. Names the same weights file as the float graph, and knows no architecture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edge_export.graph.builder import MICROSOFT_DOMAIN

# The first whose CPU attention reads an int8 cache.
OLDEST_ONNXRUNTIME = "1.27"
# From so many new tokens on, turning the held ones to float32 takes less than attending in int8.
_CHUNK_TOKENS = 6
# Inputs of GroupQueryAttention that are meant by position.
_KEY, _PAST_KEY, _PAST_VALUE, _SEQLENS, _TOTAL, _COS, _SIN, _K_SCALE = 1, 3, 4, 5, 6, 7, 8, 12


@dataclass(frozen=True, eq=False)
class CacheScales:
    """One layer's scales, float32 (kv_heads, head_size) each, all above 0."""

    key: NDArray[np.float32]
    value: NDArray[np.float32]


def int8_cache_graph(decoder: onnx.ModelProto, scales: Sequence[CacheScales]) -> onnx.ModelProto:
    """The decoder with the cache's inputs and outputs in int8.

    Args:
        decoder: a graph of the fused dialect; it is not changed.
        scales: of each layer.
    """
    model = onnx.ModelProto()
    model.CopyFrom(decoder)
    graph = model.graph
    for value in (*graph.input, *graph.output):
        if value.name.startswith(("past_key_values.", "present.")):
            value.type.tensor_type.elem_type = TensorProto.INT8
    attentions = [node for node in graph.node if node.op_type == "GroupQueryAttention"]
    assert len(attentions) == len(scales), f"{len(attentions)} attentions, {len(scales)} scales"
    kv_heads, head_size = scales[0].key.shape
    new: list[onnx.NodeProto] = _step_nodes()
    remaining = iter(zip(attentions, scales, rotary_dimensions(decoder), strict=True))
    for node in graph.node:
        if node.op_type != "GroupQueryAttention":
            new.append(node)
            continue
        layer = _Layer(*next(remaining))
        new.append(layer.node())
        graph.initializer.extend(layer.constants())
    del graph.node[:]
    graph.node.extend(new)
    graph.initializer.extend(_step_constants(kv_heads, head_size))
    return model


def rotary_dimensions(decoder: onnx.ModelProto) -> list[int]:
    """How many of a head's dimensions each attention itself rotates, in the order of the layers."""
    tables = {tensor.name: tuple(tensor.dims) for tensor in decoder.graph.initializer}
    return [
        2 * tables[node.input[_COS]][1] if _attributes(node).get("do_rotary") else 0
        for node in decoder.graph.node
        if node.op_type == "GroupQueryAttention"
    ]


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


class _Layer:
    """One attention: the node to replace, its scales, and how many dimensions of a head rotate."""

    def __init__(self, attention: onnx.NodeProto, scales: CacheScales, rotary: int) -> None:
        self._attention = attention
        self._scales = scales
        self._rotary = rotary
        self._inputs = [*attention.input, *[""] * (_K_SCALE - len(attention.input))]
        self._attributes = _attributes(attention)
        self._heads: int = self._attributes["num_heads"]
        self._prefix = f"{attention.name}.int8"

    def node(self) -> onnx.NodeProto:
        """An If with the attention's outputs."""
        return helper.make_node(
            "If",
            ["int8_cache.is_chunk"],
            list(self._attention.output),
            name=self._prefix,
            then_branch=self._subgraph("chunk", self._chunk_nodes()),
            else_branch=self._subgraph("few", [self._few_tokens_node()]),
        )

    def constants(self) -> list[onnx.TensorProto]:
        """What the branches read."""
        key, value = self._scales.key, self._scales.value
        kv_heads, head_size = key.shape
        group = self._heads // kv_heads
        each_head = np.repeat(key, group, axis=0).reshape(-1), np.repeat(value, group, axis=0)
        arrays = {
            "key": key.reshape(kv_heads, 1, head_size),
            "value": value.reshape(kv_heads, 1, head_size),
            # What takes queries and keys to numbers that multiply the cache's own, and values; and
            # the result back.
            "query_key_factor": np.concatenate([each_head[0], 1 / key.reshape(-1)]),
            "value_factor": 1 / value.reshape(-1),
            "output_factor": each_head[1].reshape(-1),
            "query_key_value": np.array([(self._heads + kv_heads) * head_size, key.size], np.int64),
            "query_key": np.array([self._heads * head_size, key.size], np.int64),
        }
        return [numpy_helper.from_array(a, f"{self._prefix}.{n}") for n, a in arrays.items()]

    def _few_tokens_node(self) -> onnx.NodeProto:
        scales = [f"{self._prefix}.key", f"{self._prefix}.value"]
        return helper.make_node(
            "GroupQueryAttention",
            [*self._inputs[:_K_SCALE], *scales],
            [f"{self._prefix}.few.{name}" for name in ("attended", "key", "value")],
            name=f"{self._prefix}.few",
            domain=MICROSOFT_DOMAIN,
            **self._attributes,
            k_quant_type="PER_CHANNEL",
            v_quant_type="PER_CHANNEL",
            kv_cache_bit_width=8,
        )

    def _chunk_nodes(self) -> list[onnx.NodeProto]:
        name, made = f"{self._prefix}.chunk", list[onnx.NodeProto]()

        def add(
            operator: str, inputs: Sequence[str], *outputs: str, domain: str = "", **attributes: Any
        ) -> list[str]:
            names = [f"{name}.{output}" for output in outputs]
            made.append(
                helper.make_node(
                    operator, inputs, names, name=names[0], domain=domain, **attributes
                )
            )
            return names

        def own(constant: str) -> str:
            return f"{self._prefix}.{constant}"

        if self._inputs[_KEY]:
            (query_key,) = add("Concat", self._inputs[:2], "query_key", axis=-1)
            values = self._inputs[2]
        else:
            packed = [self._inputs[0], own("query_key_value")]
            query_key, values = add("Split", packed, "query_key", "values", axis=-1)
        if self._attributes.get("do_rotary"):
            (query_key,) = add(
                "RotaryEmbedding",
                [query_key, "int8_cache.held", self._inputs[_COS], self._inputs[_SIN]],
                "rotated",
                domain=MICROSOFT_DOMAIN,
                **self._rotary_attributes(),
            )
        (scaled,) = add("Mul", [query_key, own("query_key_factor")], "scaled")
        query, key = add("Split", [scaled, own("query_key")], "query", "new_key", axis=-1)
        (value,) = add("Mul", [values, own("value_factor")], "new_value")
        attending = [query]
        stored = []
        for part, new in (("key", key), ("value", value)):
            (rounded,) = add("QuantizeLinear", [new, "int8_cache.1", "int8_cache.int8"], f"{part}8")
            attending += add("DequantizeLinear", [rounded, "int8_cache.1"], f"{part}.float")
            stored.append(rounded)
        pasts = self._inputs[_PAST_KEY], self._inputs[_PAST_VALUE]
        for part, past in zip(("key", "value"), pasts, strict=True):
            held_rows = [past, "int8_cache.0", "int8_cache.held", "int8_cache.tokens_axis"]
            (held,) = add("Slice", held_rows, f"{part}.held")
            attending += add("DequantizeLinear", [held, "int8_cache.1"], f"{part}.held_float")
        rest = [*self._inputs[_SEQLENS : _TOTAL + 1], "", "", *self._inputs[_SIN + 1 : _K_SCALE]]
        while not rest[-1]:
            rest.pop()
        attended, *_ = add(
            "GroupQueryAttention",
            [*attending, *rest],
            "by_scaled_values",
            "all_keys",
            "all_values",
            domain=MICROSOFT_DOMAIN,
            **(self._attributes | {"do_rotary": 0}),
        )
        add("Mul", [attended, own("output_factor")], "attended")
        for part, past, new in zip(("key", "value"), pasts, stored, strict=True):
            (by_head,) = add("Reshape", [new, "int8_cache.heads"], f"{part}.by_head")
            add("ScatterND", [past, "int8_cache.places", by_head], part)
        return made

    def _rotary_attributes(self) -> dict[str, int]:
        kv_heads, head_size = self._scales.key.shape
        part = {"rotary_embedding_dim": self._rotary} if self._rotary < head_size else {}
        return {
            "num_heads": self._heads + kv_heads,
            "interleaved": self._attributes.get("rotary_interleaved", 0),
            **part,
        }

    def _subgraph(self, branch: str, nodes: list[onnx.NodeProto]) -> onnx.GraphProto:
        kv_heads, head_size = self._scales.key.shape
        row: list[int | str] = ["B", kv_heads, "C", head_size]
        kinds = {
            "attended": (TensorProto.FLOAT, ["B", "S", self._heads * head_size]),
            "key": (TensorProto.INT8, row),
            "value": (TensorProto.INT8, row),
        }
        name = f"{self._prefix}.{branch}"
        outputs = [
            helper.make_tensor_value_info(f"{name}.{part}", kind, shape)
            for part, (kind, shape) in kinds.items()
        ]
        return helper.make_graph(nodes, name, [], outputs)


def _step_nodes() -> list[onnx.NodeProto]:
    """What all layers share of a step: is it a chunk, how much is held, where new rows go."""

    def node(operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> Any:
        full = [f"int8_cache.{name}" if name not in _GRAPH_INPUTS else name for name in inputs]
        name = f"int8_cache.{output}"
        return helper.make_node(operator, full, [name], name=name, **attributes)

    return [
        node("Shape", ["input_ids"], "shape"),
        node("Shape", ["input_ids"], "rows_1d", start=0, end=1),
        node("Shape", ["input_ids"], "new_1d", start=1, end=2),
        node("Squeeze", ["rows_1d"], "rows"),
        node("Squeeze", ["new_1d"], "new"),
        node("Cast", ["total_sequence_length"], "total", to=TensorProto.INT64),
        node("Sub", ["total", "new"], "held_scalar"),
        node("Unsqueeze", ["held_scalar", "0"], "held"),
        # The chunk's form holds the same number of tokens in each row: one row, or fresh ones.
        node("GreaterOrEqual", ["new", "chunk_tokens"], "is_long"),
        node("Equal", ["rows", "scalar_1"], "is_one_row"),
        node("Equal", ["held_scalar", "scalar_0"], "is_fresh"),
        node("Or", ["is_one_row", "is_fresh"], "is_even"),
        node("And", ["is_long", "is_even"], "is_chunk"),
        # Row, head and token of each new token's keys and values: (B, S, KV, 3).
        node("Range", ["scalar_0", "rows", "scalar_1"], "row_numbers"),
        node("Range", ["held_scalar", "total", "scalar_1"], "token_numbers"),
        node("Reshape", ["row_numbers", "as_rows"], "row_column"),
        node("Reshape", ["token_numbers", "as_tokens"], "token_column"),
        node("Concat", ["shape", "kv_heads", "1d_1"], "places_shape", axis=0),
        node("Expand", ["row_column", "places_shape"], "place_rows"),
        node("Expand", ["head_column", "places_shape"], "place_heads"),
        node("Expand", ["token_column", "places_shape"], "place_tokens"),
        node("Concat", ["place_rows", "place_heads", "place_tokens"], "places", axis=-1),
    ]


_GRAPH_INPUTS = ("input_ids", "total_sequence_length")


def _step_constants(kv_heads: int, head_size: int) -> list[onnx.TensorProto]:
    arrays: dict[str, NDArray[Any]] = {
        "0": np.array([0], np.int64),
        "1": np.array(1, np.float32),
        "int8": np.array(0, np.int8),
        "1d_1": np.array([1], np.int64),
        "scalar_0": np.array(0, np.int64),
        "scalar_1": np.array(1, np.int64),
        "chunk_tokens": np.array(_CHUNK_TOKENS, np.int64),
        "tokens_axis": np.array([2], np.int64),
        "heads": np.array([0, 0, kv_heads, head_size], np.int64),
        "kv_heads": np.array([kv_heads], np.int64),
        "as_rows": np.array([-1, 1, 1, 1], np.int64),
        "as_tokens": np.array([1, -1, 1, 1], np.int64),
        "head_column": np.arange(kv_heads, dtype=np.int64).reshape(1, 1, -1, 1),
    }
    return [numpy_helper.from_array(a, f"int8_cache.{n}") for n, a in arrays.items()]
