"""The decoder in the fused dialect: the graph contract of docs/architecture.md, built from a spec.

Reads like the model: embedding, layers of attention and feed-forward, final norm, head. Weights
come from a :class:`DecoderWeights`, in the order of the graph, one layer at a time.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from edge_export.architectures.spec import DecoderSpec
from edge_export.graph.attention import RotaryTables, StepInputs, attention
from edge_export.graph.builder import GraphBuilder
from edge_export.graph.feed_forward import feed_forward
from edge_export.graph.linear import Stored, embedding, linear, store
from edge_export.graph.norm import Norm, add_and_norm, norm
from edge_export.weights import DecoderWeights
from edge_export.write import WeightsFile


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

    step = StepInputs(seqlens_k, total)
    tables = RotaryTables(op, spec.context_length)
    with op.scope("embedding"):
        table = store(op, weights.matrix("embedding"))
        embedded = _scaled(op, embedding(op, ids, table), spec.embedding_scale)
    # Positions whose logits are wanted, as GatherND takes them: (B, N, 1).
    rows = op.Unsqueeze(wanted, op.constant("last_axis", np.array([-1], np.int64)))

    stream = _Stream(op, spec, weights, embedded)
    for i in range(spec.layers):
        rotary = spec.rotary_of(i)
        cos_and_sin = None if rotary is None else tables.of(rotary)
        with op.scope(f"layers.{i}"):
            normed = stream.read("attention_norm", i)
            attended = attention(op, spec, weights, i, normed, step, cos_and_sin)
            if i == spec.layers - 1:
                # Past the last attention nothing looks at other positions: the rest of the layer
                # and the head run on the wanted ones alone.
                attended = op.GatherND(attended, rows, batch_dims=1)
                stream.keep(rows)
            projected = linear(
                op,
                attended,
                store(op, weights.matrix("attention_output", i)),
                weights.bias("attention_output", i),
            )
            stream.write(projected, "attention_post_norm", i)
            normed = stream.read("feed_forward_norm", i)
            stream.write(feed_forward(op, spec, weights, i, normed), "feed_forward_post_norm", i)
    normed = stream.read("final_norm", None)
    _logits(op, spec, weights, normed, table)

    op.output("logits", TensorProto.FLOAT, ["B", "N", spec.vocabulary_size])
    for i in range(spec.layers):
        for part in ("key", "value"):
            op.output(f"present.{i}.{part}", TensorProto.FLOAT, cache_shape)
    return op.model()


class _Stream:
    """The residual stream. What a branch wrote is added when the next one reads, so that addition
    and norm are one operator."""

    def __init__(
        self, op: GraphBuilder, spec: DecoderSpec, weights: DecoderWeights, embedded: str
    ) -> None:
        self._op, self._spec, self._weights = op, spec, weights
        self._residual = embedded
        self._branch: str | None = None

    def read(self, role: str, layer: int | None) -> str:
        """The stream, normed where the model has such a norm."""
        held = self._norm(role, layer)
        if held is None:
            if self._branch is not None:
                self._residual = self._op.Add(self._branch, self._residual)
                self._branch = None
            return self._residual
        if self._branch is None:
            return norm(self._op, role, self._residual, held)
        normed, self._residual = add_and_norm(self._op, role, self._branch, self._residual, held)
        self._branch = None
        return normed

    def write(self, branch: str, post_norm_role: str, layer: int) -> None:
        """Add a branch, normed first where the model has such a norm."""
        held = self._norm(post_norm_role, layer)
        if held is not None:
            branch = norm(self._op, post_norm_role, branch, held)
        self._branch = _scaled(self._op, branch, self._spec.residual_scale)

    def keep(self, rows: str) -> None:
        """Go on with some positions alone; nothing may be waiting to be added."""
        assert self._branch is None, "keep comes after a read"
        self._residual = self._op.GatherND(self._residual, rows, batch_dims=1)

    def _norm(self, role: str, layer: int | None) -> Norm | None:
        if not self._spec.has(role):
            return None
        return Norm(
            self._spec.norm,
            self._weights.vector(role, layer),
            self._weights.vector_bias(role, layer),
            self._spec.norm_epsilon,
        )


def _logits(
    op: GraphBuilder, spec: DecoderSpec, weights: DecoderWeights, x: str, table: Stored
) -> None:
    """The head, scaled and capped; its last node is called what the contract calls it."""
    if not spec.tied_head:
        with op.scope("head"):
            table = store(op, weights.matrix("head"))
    # On the states a scale costs less than on the vocabulary.
    x = _scaled(op, x, spec.logits_scale)
    logits = linear(op, x, table, weights.bias("head"))
    if spec.logits_softcap is not None:
        cap = spec.logits_softcap
        logits = _scaled(op, op.Tanh(_scaled(op, logits, 1 / cap)), cap)
    op.rename(logits, "logits")


def _scaled(op: GraphBuilder, x: str, scale: float) -> str:
    return x if scale == 1 else op.Mul(x, op.constant("scale", np.array(scale, np.float32)))
