"""The decoder in the fused dialect: the graph contract of docs/architecture.md, built from a spec.

Reads like the model: embedding, layers of attention and feed-forward, final norm, head. Weights
come from a :class:`DecoderWeights`, in the order of the graph, one layer at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from edge_export.architectures.spec import DecoderSpec
from edge_export.graph.builder import GraphBuilder
from edge_export.graph.linear import embedding, linear, store_blocks
from edge_export.weights import DecoderWeights
from edge_export.write import WeightsFile


@dataclass(frozen=True)
class _Step:
    """Names of the inputs that every layer reads."""

    seqlens_k: str
    total_sequence_length: str
    cos: str
    sin: str


def build_decoder(spec: DecoderSpec, weights: DecoderWeights, file: WeightsFile) -> onnx.ModelProto:
    """Build the graph and write its weights.

    Args:
        spec: the decoder.
        weights: gives each role's arrays, quantized.
        file: the external data file to append to.
    """
    op = GraphBuilder("decoder", file)
    ids = op.input("input_ids", TensorProto.INT64, ["B", "S"])
    seqlens_k = op.input("seqlens_k", TensorProto.INT32, ["B"])
    total = op.input("total_sequence_length", TensorProto.INT32, [])
    wanted = op.input("logits_indices", TensorProto.INT64, ["B", "N"])
    cache_shape: list[int | str] = ["B", spec.kv_heads, "C", spec.head_size]
    for i in range(spec.layers):
        for part in ("key", "value"):
            op.input(f"past_key_values.{i}.{part}", TensorProto.FLOAT, cache_shape)

    cos_table, sin_table = spec.rotary.tables(spec.context_length)
    step = _Step(
        seqlens_k, total, op.weight("rotary.cos", cos_table), op.weight("rotary.sin", sin_table)
    )
    with op.scope("embedding"):
        table = store_blocks(op, weights.matrix("embedding"))
        residual = embedding(op, ids, table)
    # Positions whose logits are wanted, as GatherND takes them: (B, N, 1).
    rows = op.Unsqueeze(wanted, op.constant("last_axis", np.array([-1], np.int64)))

    hidden = ""
    for i in range(spec.layers):
        with op.scope(f"layers.{i}"):
            normed, residual = _norm(op, spec, weights, "attention_norm", i, hidden, residual)
            attended = _attention(op, spec, weights, i, normed, step)
            if i == spec.layers - 1:
                # Past the last attention nothing looks at other positions: the rest of the layer
                # and the head run on the wanted ones alone.
                attended = op.GatherND(attended, rows, batch_dims=1)
                residual = op.GatherND(residual, rows, batch_dims=1)
            hidden = linear(
                op,
                attended,
                store_blocks(op, weights.matrix("attention_output", i)),
                weights.bias("attention_output", i),
            )
            normed, residual = _norm(op, spec, weights, "feed_forward_norm", i, hidden, residual)
            hidden = _feed_forward(op, weights, i, normed)
    normed, _ = _norm(op, spec, weights, "final_norm", None, hidden, residual)
    if not spec.tied_head:
        with op.scope("head"):
            table = store_blocks(op, weights.matrix("head"))
    linear(op, normed, table, weights.bias("head"), output="logits")

    op.output("logits", TensorProto.FLOAT, ["B", "N", spec.vocabulary_size])
    for i in range(spec.layers):
        for part in ("key", "value"):
            op.output(f"present.{i}.{part}", TensorProto.FLOAT, cache_shape)
    return op.model()


def _norm(
    op: GraphBuilder,
    spec: DecoderSpec,
    weights: DecoderWeights,
    role: str,
    layer: int | None,
    hidden: str,
    residual: str,
) -> tuple[str, str]:
    """RMSNorm of ``hidden + residual``, and that sum; before the first layer there is no hidden."""
    gamma = op.weight(role, weights.vector(role, layer))
    if not hidden:
        normed = op.SimplifiedLayerNormalization(
            residual, gamma, axis=-1, epsilon=spec.norm_epsilon, stash_type=1
        )
        return normed, residual
    normed, _, _, total = op.node(
        "SkipSimplifiedLayerNormalization",
        [hidden, residual, gamma],
        outputs=4,
        epsilon=spec.norm_epsilon,
    )
    return normed, total


def _attention(
    op: GraphBuilder,
    spec: DecoderSpec,
    weights: DecoderWeights,
    layer: int,
    x: str,
    step: _Step,
) -> str:
    """Grouped-query attention with rotary embedding over the cache, in place."""
    projections = [
        linear(op, x, store_blocks(op, blocks), bias)
        for blocks, bias in weights.fused(("query", "key", "value"), layer)
    ]
    # One product means packed QKV, which the operator splits itself.
    query, key, value = projections if len(projections) == 3 else (projections[0], "", "")
    attended, _, _ = op.node(
        "GroupQueryAttention",
        [
            query,
            key,
            value,
            f"past_key_values.{layer}.key",
            f"past_key_values.{layer}.value",
            step.seqlens_k,
            step.total_sequence_length,
            step.cos,
            step.sin,
        ],
        outputs=["attended" + f".{layer}", f"present.{layer}.key", f"present.{layer}.value"],
        num_heads=spec.heads,
        kv_num_heads=spec.kv_heads,
        do_rotary=1,
        rotary_interleaved=0,
    )
    return attended


def _feed_forward(op: GraphBuilder, weights: DecoderWeights, layer: int, x: str) -> str:
    """SwiGLU: ``down(silu(gate(x)) * up(x))``."""
    products = [
        linear(op, x, store_blocks(op, blocks), bias)
        for blocks, bias in weights.fused(("gate", "up"), layer)
    ]
    gate, up = (
        products
        if len(products) == 2
        else op.node("Split", products, outputs=2, axis=-1, num_outputs=2)
    )
    # QuickGelu with alpha 1 is SiLU in one pass over the activations.
    activated = op.Mul(op.QuickGelu(gate, alpha=1.0), up)
    return linear(
        op, activated, store_blocks(op, weights.matrix("down", layer)), weights.bias("down", layer)
    )
