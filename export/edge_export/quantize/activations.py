"""The decoder's hidden states for a few texts, one step at a time, in plain float32.

Whoever calls gives each step its weights, so that they may be the source's or quantized ones, and
keeps no more than a step's. Knows no files and no quantization.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edge_export.architectures.spec import Activation, DecoderSpec

F32 = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Linear:
    """``x @ weights.T + bias``: weights (out, in), bias (out,) or None."""

    weights: F32
    bias: F32 | None = None

    def __call__(self, x: F32) -> F32:
        """Float32 (..., in) -> (..., out)."""
        y: F32 = x @ self.weights.T
        if self.bias is not None:
            y += self.bias
        return y


class Norms(Protocol):
    """Gives the weights of norms by their roles, as SourceWeights does."""

    def vector(self, role: str, layer: int | None = None) -> F32:
        """A norm's weights as they multiply, float32 (width,)."""

    def vector_bias(self, role: str, layer: int | None = None) -> F32 | None:
        """A norm's bias, float32 (width,), or None."""


class HiddenStates:
    """The residual stream of several texts, read side by side and each from position 0.

    Args:
        spec: the decoder.
        norms: its norms.
        embedded: float32 (T, hidden), the embeddings of all texts' tokens, one text after another,
            not yet scaled.
        lengths: tokens of each text; their sum is T.
    """

    def __init__(
        self, spec: DecoderSpec, norms: Norms, embedded: F32, lengths: Sequence[int]
    ) -> None:
        self._spec = spec
        self._norms = norms
        self._x = embedded * np.float32(spec.embedding_scale)
        self._bounds = np.cumsum([0, *lengths])

    def read(self, role: str, layer: int | None) -> F32:
        """The states, normed where the model has such a norm: float32 (T, hidden)."""
        return self._normed(self._x, role, layer)

    def write(self, branch: F32, post_norm_role: str, layer: int) -> None:
        """Add a branch's output, float32 (T, hidden), normed first where the model does so."""
        branch = self._normed(branch, post_norm_role, layer)
        self._x = self._x + branch * np.float32(self._spec.residual_scale)

    def attend(self, layer: int, x: F32, query: Linear, key: Linear, value: Linear) -> F32:
        """Causal attention over normed states, rows in rotary halves: (T, heads * head_size)."""
        q, k, v = query(x), key(x), value(x)
        if self._spec.query_key_norm is not None:
            q = self._projection_normed(q, "query_norm", layer)
            k = self._projection_normed(k, "key_norm", layer)
        mixed = np.empty_like(q)
        for start, stop in zip(self._bounds[:-1], self._bounds[1:], strict=True):
            part = slice(start, stop)
            mixed[part] = self._attend_one(layer, q[part], k[part], v[part])
        return mixed

    def _attend_one(self, layer: int, q: F32, k: F32, v: F32) -> F32:
        s, count = self._spec, len(q)
        group = s.heads // s.kv_heads
        queries, keys = _heads(q, s.heads), _heads(k, s.kv_heads)  # (H, S, D), (KV, S, D)
        rotary = s.rotary_of(layer)
        if rotary is not None:
            cos, sin = rotary.tables(count)
            queries, keys = _rotate(queries, cos, sin), _rotate(keys, cos, sin)
        scale = s.head_size**-0.5 if s.attention_scale is None else s.attention_scale
        queries = queries.reshape(s.kv_heads, group, count, s.head_size) * np.float32(scale)
        values = _heads(v, s.kv_heads)
        unseen = _unseen(count, s.window_of(layer))
        mixed = np.empty((s.kv_heads, group, count, s.head_size), np.float32)
        for i in range(s.kv_heads):  # one at a time: scores are (group, S, S)
            scores = queries[i] @ keys[i].T
            if s.attention_softcap is not None:
                cap = np.float32(s.attention_softcap)
                scores = cap * np.tanh(scores / cap)
            scores += unseen
            scores -= scores.max(axis=-1, keepdims=True)
            np.exp(scores, out=scores)
            np.matmul(scores, values[i], out=mixed[i])
            mixed[i] /= scores.sum(axis=-1, keepdims=True)
        by_token: F32 = mixed.reshape(s.heads, count, s.head_size).transpose(1, 0, 2)
        return by_token.reshape(count, -1)

    def _projection_normed(self, x: F32, role: str, layer: int) -> F32:
        if self._spec.query_key_norm == "row":
            return self._normed(x, role, layer)
        heads = x.reshape(len(x), -1, self._spec.head_size)
        return self._normed(heads, role, layer).reshape(x.shape)

    def _normed(self, x: F32, role: str, layer: int | None) -> F32:
        """The norm over the last axis, or ``x`` where the model has none."""
        if not self._spec.has(role):
            return x
        if self._spec.norm == "layer":
            x = x - x.mean(axis=-1, keepdims=True)
        mean_square = np.mean(np.square(x), axis=-1, keepdims=True)
        normed: F32 = x / np.sqrt(mean_square + np.float32(self._spec.norm_epsilon))
        normed *= self._norms.vector(role, layer)
        bias = self._norms.vector_bias(role, layer)
        return normed if bias is None else normed + bias


def _unseen(count: int, window: int | None) -> F32:
    """What is added to scores, (S, S): minus infinity where a token must not look."""
    unseen = np.triu(np.full((count, count), -np.inf, np.float32), k=1)
    if window is not None and window < count:
        unseen += np.tril(np.full((count, count), -np.inf, np.float32), k=-window)
    return unseen


def _rotate(x: F32, cos: F32, sin: F32) -> F32:
    """Rotary positions on (heads, S, D): dimension i turns with dimension i + rotary / 2."""
    half = cos.shape[1]
    first, second = x[..., :half], x[..., half : 2 * half]
    turned = np.array(x)
    turned[..., :half] = first * cos - second * sin
    turned[..., half : 2 * half] = second * cos + first * sin
    return turned


def inner(spec: DecoderSpec, x: F32, gate: Linear | None, up: Linear) -> F32:
    """The feed-forward layer before its down projection: (T, feed_forward)."""
    if gate is None:
        return _activate(up(x), spec.activation)
    y = _activate(gate(x), spec.activation)
    y *= up(x)
    return y


def _activate(x: F32, activation: Activation) -> F32:
    if activation == "silu":
        # exp overflows to infinity for very negative gates, and 1 / (1 + inf) is the right 0.
        with np.errstate(over="ignore"):
            silu: F32 = x / (np.float32(1) + np.exp(-x))
        return silu
    if activation == "gelu_tanh":
        slope = np.float32(math.sqrt(2 / math.pi))
        y: F32 = np.float32(0.5) * x * (1 + np.tanh(slope * (x + np.float32(0.044715) * x**3)))
        return y
    erf = np.vectorize(math.erf, otypes=[np.float32])
    exact: F32 = np.float32(0.5) * x * (1 + erf(x / np.float32(math.sqrt(2))))
    return exact


def _heads(x: F32, heads: int) -> F32:
    split: F32 = x.reshape(len(x), heads, -1).transpose(1, 0, 2)
    return split
