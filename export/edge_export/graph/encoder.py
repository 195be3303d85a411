"""A BERT-family encoder that gives one vector a text.

Inputs ``input_ids`` and ``attention_mask``, int64 [B, S], right-padded; output ``embeddings``,
float32 [B, hidden], pooled and, where the model says so, of length 1. Reads like the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from edge_export.architectures.encoder import EncoderSpec
from edge_export.graph.builder import GraphBuilder
from edge_export.graph.linear import embedding, linear, store
from edge_export.graph.norm import Norm, add_and_norm, norm
from edge_export.quantize.blocks import BlockQuantized
from edge_export.write import WeightsFile

F32 = NDArray[np.float32]


class EncoderArrays(Protocol):
    """The weights by role, in the order of the graph."""

    def matrix(self, roles: Sequence[str], layer: int | None = None) -> BlockQuantized | F32:
        """The roles' matrices (out, in), stacked along their rows."""

    def bias(self, roles: Sequence[str], layer: int | None = None) -> F32:
        """The roles' biases, float32 (out,), one after another."""

    def table(self, role: str) -> F32:
        """A table of rows that are added, float32 (rows, hidden)."""

    def norm(self, role: str, layer: int | None = None) -> Norm:
        """A norm's weights."""


def build_encoder(spec: EncoderSpec, arrays: EncoderArrays, file: WeightsFile) -> onnx.ModelProto:
    """Build the graph and write its weights to ``file``."""
    op = GraphBuilder("encoder", file)
    ids = op.input("input_ids", TensorProto.INT64, ["B", "S"])
    mask = op.input("attention_mask", TensorProto.INT64, ["B", "S"])
    with op.scope("embedding"):
        words = embedding(op, ids, store(op, arrays.matrix(["embedding"])))
        x = op.Add(words, _positions(op, spec, arrays, ids))
        x = norm(op, "norm", x, arrays.norm("embedding_norm"))
    # The operator's mask: 1 where there is a token to attend to.
    attendable = op.Cast(mask, to=TensorProto.INT32)
    for i in range(spec.layers):
        with op.scope(f"layers.{i}"):
            x = _layer(op, spec, arrays, i, x, attendable)
    vector = _pool(op, spec, x, mask)
    op.rename(vector, "embeddings")
    op.output("embeddings", TensorProto.FLOAT, ["B", spec.hidden_size])
    return op.model()


def _positions(op: GraphBuilder, spec: EncoderSpec, arrays: EncoderArrays, ids: str) -> str:
    """Rows of the position table for S tokens; every token is of the first kind."""
    table = arrays.table("positions")[spec.first_position :][: spec.max_tokens]
    rows = op.weight("positions", table + arrays.table("kinds")[:1])
    zero, one = (op.constant(str(n), np.array([n], np.int64)) for n in (0, 1))
    length = op.Shape(ids, start=1, end=2)
    return op.Unsqueeze(op.Slice(rows, zero, length, zero, one), zero)


def _layer(
    op: GraphBuilder,
    spec: EncoderSpec,
    arrays: EncoderArrays,
    i: int,
    x: str,
    attendable: str,
) -> str:
    def product(value: str, *roles: str) -> str:
        return linear(op, value, store(op, arrays.matrix(roles, i)), arrays.bias(roles, i))

    joined = product(x, "query", "key", "value")
    query, key, value = op.node("Split", [joined], outputs=3, axis=-1, num_outputs=3)
    attended = op.MultiHeadAttention(query, key, value, "", attendable, num_heads=spec.heads)
    output = product(attended, "attention_output")
    x, _ = add_and_norm(op, "attention_norm", output, x, arrays.norm("attention_norm", i))
    hidden = product(op.Gelu(product(x, "up"), approximate=spec.gelu), "down")
    x, _ = add_and_norm(op, "feed_forward_norm", hidden, x, arrays.norm("feed_forward_norm", i))
    return x


def _pool(op: GraphBuilder, spec: EncoderSpec, x: str, mask: str) -> str:
    one = op.constant("tokens_axis", np.array([1], np.int64))
    if spec.pooling == "cls":
        vector = op.Gather(x, op.constant("first", np.array(0, np.int64)), axis=1)
    else:
        weight = op.Cast(mask, to=TensorProto.FLOAT)
        last = op.constant("last_axis", np.array([-1], np.int64))
        total = op.ReduceSum(op.Mul(x, op.Unsqueeze(weight, last)), one, keepdims=0)
        vector = op.Div(total, op.ReduceSum(weight, one, keepdims=1))
    return op.LpNormalization(vector, axis=-1, p=2) if spec.normalize else vector
