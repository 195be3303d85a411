"""The feed-forward layer: gated or plain, by its activation. Knows one layer at a time."""

from __future__ import annotations

from edge_export.architectures.spec import Activation, DecoderSpec
from edge_export.graph.builder import GraphBuilder
from edge_export.graph.linear import linear, store
from edge_export.weights import DecoderWeights


def feed_forward(
    op: GraphBuilder, spec: DecoderSpec, weights: DecoderWeights, layer: int, x: str
) -> str:
    """``down(act(gate(x)) * up(x))`` (Shazeer 2020), or ``down(act(up(x)))`` without a gate."""
    if spec.gated:
        products = [
            linear(op, x, store(op, matrix), bias)
            for matrix, bias in weights.fused(("gate", "up"), layer)
        ]
        gate, up = (
            products
            if len(products) == 2
            else op.node("Split", products, outputs=2, axis=-1, num_outputs=2)
        )
        inner = op.Mul(_activate(op, spec.activation, gate), up)
    else:
        up = linear(op, x, store(op, weights.matrix("up", layer)), weights.bias("up", layer))
        inner = _activate(op, spec.activation, up)
    return linear(op, inner, store(op, weights.matrix("down", layer)), weights.bias("down", layer))


def _activate(op: GraphBuilder, activation: Activation, x: str) -> str:
    if activation == "silu":
        return op.QuickGelu(x, alpha=1.0)  # SiLU in one pass over the activations
    return op.Gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")
