"""The decoder in the portable dialect: a fused graph rewritten with standard operators alone.

Works on the finished fused graph, so that every architecture that has one has the other, and on its
weights file, whose bytes both graphs share: MatMulNBits blocks are, byte for byte, a blocked
DequantizeLinear's. Providers that compile graphs want this form, some with every shape fixed. The
graph reads the cache and gives only the new rows; who runs it puts them in their place. Knows no
checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from edge_export.graph.builder import STANDARD_OPSET, GraphBuilder
from edge_export.graph.portable_weights import FusedWeights
from edge_export.write import WeightsFile
from edge_runtime.errors import UnsupportedModelError


@dataclass(frozen=True)
class PortableForm:
    """Which portable graph to make.

    Args:
        tokens: new tokens in a run; None leaves it open.
        capacity: rows of the cache; None leaves it open.
        half: weights and activations in float16, norms in float32, no blocks; else blocks and
            float32.
    """

    tokens: int | None = None
    capacity: int | None = None
    half: bool = False


def portable_decoder(
    fused: onnx.ModelProto, folder: Path, file: WeightsFile, form: PortableForm
) -> onnx.ModelProto:
    """Rewrite a fused decoder.

    Args:
        fused: the graph, without its external data loaded.
        folder: where the weights file is that it names.
        file: takes what cannot be shared with that one.
        form: shapes and precision.

    Returns:
        The graph contract of docs/architecture.md, portable dialect, for one sequence a run.

    Raises:
        UnsupportedModelError: the graph has an operator or option that has no portable form here.
    """
    return _Rewriter(fused, folder, file, form).model()


class _Rewriter:
    def __init__(
        self, fused: onnx.ModelProto, folder: Path, file: WeightsFile, form: PortableForm
    ) -> None:
        self._op = GraphBuilder("decoder-portable", file)
        self._form = form
        self._fused = fused.graph
        self._weights = FusedWeights(fused.graph, folder, self._op, half=form.half)
        self._float = TensorProto.FLOAT16 if form.half else TensorProto.FLOAT
        self._dtype = np.float16 if form.half else np.float32
        self._cos = self._sin = ""
        self._names: dict[str, str] = {}  # value of the fused graph -> value of this one
        self._constants: dict[str, str] = {}
        self._rules: Mapping[str, Callable[[onnx.NodeProto, Mapping[str, Any]], None]] = {
            "GatherBlockQuantized": self._embedding,
            "MatMulNBits": self._linear,
            "FusedMatMul": self._plain_linear,
            "SimplifiedLayerNormalization": self._norm,
            "SkipSimplifiedLayerNormalization": self._skip_norm,
            "GroupQueryAttention": self._attention,
            "QuickGelu": self._quick_gelu,
            "GatherND": self._wanted_rows,
            "Identity": self._same,
        }

    def model(self) -> onnx.ModelProto:
        op, form = self._op, self._form
        tokens: int | str = form.tokens or "S"
        capacity: int | str = form.capacity or "C"
        op.input("input_ids", TensorProto.INT64, [1, tokens])
        op.input("position_ids", TensorProto.INT64, [1, tokens])
        rows: int | str = "T"
        if form.tokens and form.capacity:
            rows = form.tokens + form.capacity
        op.input("attention_mask", self._float, [1, 1, tokens, rows])
        wanted: int | str = 1 if form.tokens else "N"
        op.input("logits_rows", self._float, [1, wanted, tokens])
        self._names["input_ids"] = "input_ids"
        for value in self._fused.input:
            if value.name.startswith("past_key_values."):
                shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
                op.input(value.name, self._float, [1, shape[1], capacity, shape[3]])
        self._cos, self._sin = self._rotary_rows()
        for node in self._fused.node:
            self._rewrite(node)
        vocabulary = self._fused.output[0].type.tensor_type.shape.dim[2].dim_value
        logits = self._names["logits"]
        if form.half:
            logits = op.Cast(logits, to=TensorProto.FLOAT)
        op.node("Identity", [logits], outputs=["logits"])
        op.output("logits", TensorProto.FLOAT, [1, wanted, vocabulary])
        for value in self._fused.output[1:]:
            name = value.name.replace("present.", "new_key_values.")
            shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
            op.output(name, self._float, [1, shape[1], tokens, shape[3]])
        model = op.model()
        del model.opset_import[:]
        model.opset_import.append(helper.make_opsetid("", STANDARD_OPSET))
        return model

    def _rewrite(self, node: onnx.NodeProto) -> None:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        rule = self._rules.get(node.op_type)
        with self._op.scope(node.name):
            if rule is not None:
                rule(node, attributes)
            elif node.domain in ("", "ai.onnx"):
                if node.op_type == "Unsqueeze" and node.input[0] == "logits_indices":
                    return  # the wanted rows come as a matrix here
                made = self._op.node(
                    node.op_type,
                    [self._value(name) for name in node.input],
                    outputs=len(node.output),
                    **attributes,
                )
                self._names.update(zip(node.output, made, strict=True))
            else:
                raise UnsupportedModelError(
                    f"the operator {node.op_type} of the fused graph has no portable form"
                )

    def _value(self, name: str) -> str:
        """The name here of a value of the fused graph, or of its small weight."""
        if name == "" or name in self._names:
            return self._names.get(name, "")
        self._names[name] = self._weights.plain(name)
        return self._names[name]

    def _same(self, node: onnx.NodeProto, _: Mapping[str, Any]) -> None:
        self._names[node.output[0]] = self._value(node.input[0])

    def _embedding(self, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> None:
        self._names[node.output[0]] = self._weights.rows(
            node.input, self._value(node.input[1]), attributes
        )

    def _linear(self, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> None:
        product = self._op.MatMul(
            self._value(node.input[0]), self._weights.matrix(node, attributes)
        )
        if len(node.input) > 5 and node.input[5]:
            product = self._op.Add(product, self._value(node.input[5]))
        self._names[node.output[0]] = product

    def _plain_linear(self, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> None:
        """Unquantized weights, (N, K)."""
        others = {name: value for name, value in attributes.items() if value}
        if others.pop("transB", 0) != 1 or others.pop("alpha", 1.0) != 1.0 or others:
            raise UnsupportedModelError(f"a product with {others} has no portable form")
        x, rows = (self._value(name) for name in node.input)
        turned = self._op.Transpose(rows, perm=[1, 0])
        self._names[node.output[0]] = self._op.MatMul(x, turned)

    def _norm(self, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> None:
        x, gamma = (self._value(name) for name in node.input)
        self._names[node.output[0]] = self._rms_norm(x, gamma, attributes["epsilon"])

    def _skip_norm(self, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> None:
        if len(node.input) > 3 and node.input[3]:
            raise UnsupportedModelError("a norm with a bias has no portable form")
        x, residual, gamma = (self._value(name) for name in node.input[:3])
        total = self._op.Add(x, residual)
        self._names[node.output[0]] = self._rms_norm(total, gamma, attributes["epsilon"])
        if len(node.output) > 3:
            self._names[node.output[3]] = total

    def _rms_norm(self, x: str, gamma: str, epsilon: float) -> str:
        """Zhang and Sennrich 2019; in float32, because squares leave float16's range."""
        op, half = self._op, self._form.half
        wide = op.Cast(x, to=TensorProto.FLOAT) if half else x
        squares = op.Mul(wide, wide)
        mean = op.ReduceMean(squares, self._shared("last_axis", np.array([-1], np.int64)))
        scale = op.Sqrt(op.Add(mean, self._shared(f"eps{epsilon}", np.float32(epsilon))))
        normed = op.Div(wide, scale)
        return op.Mul(op.Cast(normed, to=self._float) if half else normed, gamma)

    def _quick_gelu(self, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> None:
        x = self._value(node.input[0])
        alpha = attributes.get("alpha", 1.702)
        scaled = x
        if alpha != 1.0:
            scaled = self._op.Mul(x, self._shared(f"alpha{alpha}", self._dtype(alpha)))
        self._names[node.output[0]] = self._op.Mul(x, self._op.Sigmoid(scaled))

    def _wanted_rows(self, node: onnx.NodeProto, _: Mapping[str, Any]) -> None:
        """Rows picked by a product with a matrix of ones and zeros: few providers can gather."""
        self._names[node.output[0]] = self._op.MatMul("logits_rows", self._value(node.input[0]))

    def _attention(self, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> None:
        """Grouped-query attention over the cache's rows and the new ones, under a mask."""
        _check_attention(node, attributes)
        op = self._op
        heads, kv_heads = attributes["num_heads"], attributes["kv_num_heads"]
        past_key, past_value = node.input[3], node.input[4]
        size = self._head_size(past_key)
        query, key, value = self._split_heads(node, heads, kv_heads, size)
        if attributes.get("do_rotary", 0):
            query, key = self._rotate(query, size), self._rotate(key, size)
        layer = past_key.split(".")[1]
        for new, part in ((key, "key"), (value, "value")):
            op.node("Identity", [new], outputs=[f"new_key_values.{layer}.{part}"])
        keys = op.Concat(past_key, key, axis=2)  # (1, KV, C + S, D)
        values = op.Concat(past_value, value, axis=2)
        # (KV, H/KV, S, D) by (KV, 1, D, C + S): the heads of a group share their keys.
        grouped = op.Reshape(query, self._shape(kv_heads, heads // kv_heads, -1, size))
        across = op.Transpose(keys, perm=[1, 0, 3, 2])
        scale = attributes.get("scale") or size**-0.5
        scaled = op.Mul(grouped, self._shared(f"scale{scale}", self._dtype(scale)))
        scores = op.Add(op.MatMul(scaled, across), "attention_mask")
        weights = op.Softmax(scores, axis=-1)
        attended = op.MatMul(weights, op.Transpose(values, perm=[1, 0, 2, 3]))
        merged = op.Reshape(attended, self._shape(1, heads, -1, size))
        by_token = op.Transpose(merged, perm=[0, 2, 1, 3])
        self._names[node.output[0]] = op.Reshape(by_token, self._shape(1, -1, heads * size))

    def _split_heads(
        self, node: onnx.NodeProto, heads: int, kv_heads: int, size: int
    ) -> tuple[str, str, str]:
        """Query (1, H, S, D), key and value (1, KV, S, D)."""
        op = self._op
        if node.input[1]:
            parts = [self._value(name) for name in node.input[:3]]
        else:
            sizes = np.array([heads * size, kv_heads * size, kv_heads * size], np.int64)
            packed = self._value(node.input[0])
            parts = list(op.node("Split", [packed, self._shared("qkv", sizes)], outputs=3, axis=-1))
        split = []
        for part, count in zip(parts, (heads, kv_heads, kv_heads), strict=True):
            by_head = op.Reshape(part, self._shape(1, -1, count, size))
            split.append(op.Transpose(by_head, perm=[0, 2, 1, 3]))
        return split[0], split[1], split[2]

    def _rotate(self, x: str, size: int) -> str:
        """Rotary embedding of the first dimensions, in halves (Su et al. 2021)."""
        op = self._op
        half = self._rotary_width()
        rest = size - 2 * half
        sizes = np.array([half, half] + ([rest] if rest else []), np.int64)
        first, second, *others = op.node(
            "Split", [x, self._shared("halves", sizes)], outputs=len(sizes), axis=-1
        )
        turned = [
            op.Sub(op.Mul(first, self._cos), op.Mul(second, self._sin)),
            op.Add(op.Mul(second, self._cos), op.Mul(first, self._sin)),
        ]
        return op.Concat(*turned, *others, axis=-1)

    def _rotary_rows(self) -> tuple[str, str]:
        """cos and sin at the new tokens' positions, (1, 1, S, R / 2) each."""
        op = self._op
        rows = []
        for table in self._rotary_tables():
            picked = op.Gather(self._weights.shared(table), "position_ids", axis=0)
            across = op.Unsqueeze(picked, self._shared("axis1", np.array([1], np.int64)))
            rows.append(op.Cast(across, to=self._float) if self._form.half else across)
        return rows[0], rows[1]

    def _rotary_width(self) -> int:
        return int(self._weights.shape(self._rotary_tables()[0])[1])

    def _rotary_tables(self) -> tuple[str, str]:
        tables = {
            (node.input[7], node.input[8])
            for node in self._fused.node
            if node.op_type == "GroupQueryAttention"
        }
        if len(tables) != 1 or not all(next(iter(tables))):
            raise UnsupportedModelError(
                "layers with several rotary tables, or with none, have no portable form"
            )
        return next(iter(tables))

    def _head_size(self, past: str) -> int:
        value = next(v for v in self._fused.input if v.name == past)
        return int(value.type.tensor_type.shape.dim[3].dim_value)

    def _shape(self, *sizes: int) -> str:
        return self._shared(f"shape{sizes}", np.array(sizes, np.int64))

    def _shared(self, key: str, value: Any) -> str:
        """A small constant that many nodes read, declared once."""
        array: NDArray[Any] = np.asarray(value)
        if key not in self._constants:
            with self._op.root():
                self._constants[key] = self._op.constant(f"constant.{len(self._constants)}", array)
        return self._constants[key]


def _check_attention(node: onnx.NodeProto, attributes: Mapping[str, Any]) -> None:
    """Refuse what the rewriting does not know, before it makes another model of it."""
    known = {"num_heads", "kv_num_heads", "do_rotary", "rotary_interleaved", "scale"}
    off = {"rotary_interleaved": 0, "local_window_size": -1, "softcap": 0.0, "smooth_softmax": 0}
    for name, value in attributes.items():
        if name in off and value == off[name]:
            continue
        if name not in known or name in off:
            raise UnsupportedModelError(f"attention with {name} {value} has no portable form")
    if any(node.input[9:]):
        raise UnsupportedModelError(
            f"attention that also reads {', '.join(filter(None, node.input[9:]))} "
            "has no portable form"
        )


def load_fused(path: Path) -> onnx.ModelProto:
    """A fused graph without the weights that it names."""
    return onnx.load_model(str(path), load_external_data=False)
