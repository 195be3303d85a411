"""Attention over the cache, with what comes between the projections and it.

Query, key and value are normed where the model does so, rotated, and attended to in one operator
that extends the cache in place. Knows one layer at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_export.architectures.spec import DecoderSpec, RotarySpec
from edge_export.graph.builder import GraphBuilder
from edge_export.graph.linear import linear, store
from edge_export.graph.norm import Norm, norm
from edge_export.weights import DecoderWeights


@dataclass(frozen=True)
class StepInputs:
    """Names of the inputs that every layer's attention reads."""

    seqlens_k: str
    total_sequence_length: str


class RotaryTables:
    """cos and sin of each kind of positions, written once for all layers that share it.

    Args:
        op: the graph.
        positions: how many the tables reach.
    """

    def __init__(self, op: GraphBuilder, positions: int) -> None:
        self._op = op
        self._positions = positions
        self._written: list[tuple[RotarySpec, str, str]] = []

    def of(self, rotary: RotarySpec) -> tuple[str, str]:
        """Names of cos and sin."""
        for known, cos, sin in self._written:
            if known is rotary:
                return cos, sin
        cos_table, sin_table = rotary.tables(self._positions)
        cos = self._op.weight("rotary.cos", cos_table)
        sin = self._op.weight("rotary.sin", sin_table)
        self._written.append((rotary, cos, sin))
        return cos, sin


def attention(
    op: GraphBuilder,
    spec: DecoderSpec,
    weights: DecoderWeights,
    layer: int,
    x: str,
    step: StepInputs,
    tables: tuple[str, str] | None,
) -> str:
    """Grouped-query attention over the cache, in place: (B, S, hidden) -> (B, S, H * D).

    Args:
        op: the graph, in the layer's scope.
        spec: the decoder.
        weights: gives the projections.
        layer: which one.
        x: what is projected.
        step: the step's inputs.
        tables: cos and sin, or None for a layer without positions.
    """
    query, key, value = _projections(op, spec, weights, layer, x)
    attributes: dict[str, Any] = {}
    if spec.attention_scale is not None:
        attributes["scale"] = spec.attention_scale
    if spec.attention_softcap is not None:
        attributes["softcap"] = spec.attention_softcap
    window = spec.window_of(layer)
    if window is not None and window < spec.context_length:
        # onnxruntime 1.23 looks back over one token more than this, later ones over as many.
        attributes["local_window_size"] = window
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
            *(tables or ()),
        ],
        outputs=["attended" + f".{layer}", f"present.{layer}.key", f"present.{layer}.value"],
        num_heads=spec.heads,
        kv_num_heads=spec.kv_heads,
        do_rotary=int(tables is not None),
        rotary_interleaved=0,
        **attributes,
    )
    return attended


def _projections(
    op: GraphBuilder, spec: DecoderSpec, weights: DecoderWeights, layer: int, x: str
) -> tuple[str, str, str]:
    """Query, key and value; packed into the first, with the others "", where nothing is between."""
    products = [
        linear(op, x, store(op, matrix), bias)
        for matrix, bias in weights.fused(("query", "key", "value"), layer)
    ]
    if spec.query_key_norm is None:
        # One product means packed QKV, which the operator splits itself.
        query, key, value = products if len(products) == 3 else (products[0], "", "")
        return query, key, value
    if len(products) == 1:
        keys = spec.kv_heads * spec.head_size
        sizes = op.constant("qkv_sizes", np.array([spec.heads * spec.head_size, keys, keys]))
        products = list(op.node("Split", [products[0], sizes], outputs=3, axis=-1))
    query, key, value = products
    return (
        _projection_norm(op, spec, weights, "query_norm", layer, query),
        _projection_norm(op, spec, weights, "key_norm", layer, key),
        value,
    )


def _projection_norm(
    op: GraphBuilder, spec: DecoderSpec, weights: DecoderWeights, role: str, layer: int, x: str
) -> str:
    """A norm of each head, or of all heads as one row."""
    held = Norm(spec.norm, weights.vector(role, layer), None, spec.norm_epsilon)
    if spec.query_key_norm == "row":
        return norm(op, role, x, held)
    heads = op.Reshape(x, op.constant("by_head", np.array([0, 0, -1, spec.head_size])))
    return op.Reshape(norm(op, role, heads, held), op.constant("by_row", np.array([0, 0, -1])))
