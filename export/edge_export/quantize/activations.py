"""The decoder's hidden states for a few texts, one step at a time, in plain float32.

Whoever calls gives each step its weights, so that they may be the source's or quantized ones, and
keeps no more than a step's. Knows no files and no quantization.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_export.architectures.spec import DecoderSpec

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


class HiddenStates:
    """The residual stream of several texts, read side by side and each from position 0.

    Args:
        spec: the decoder.
        embedded: float32 (T, hidden), the embeddings of all texts' tokens, one text after another.
        lengths: tokens of each text; their sum is T.
    """

    def __init__(self, spec: DecoderSpec, embedded: F32, lengths: Sequence[int]) -> None:
        self._spec = spec
        self._x = embedded
        self._bounds = np.cumsum([0, *lengths])
        self._cos, self._sin = spec.rotary.tables(max(lengths))

    def normed(self, gamma: F32) -> F32:
        """RMSNorm of the states: float32 (T, hidden)."""
        mean_square = np.einsum("th,th->t", self._x, self._x)[:, None] / self._x.shape[1]
        scale = np.sqrt(mean_square + np.float32(self._spec.norm_epsilon))
        normed: F32 = self._x / scale
        normed *= gamma
        return normed

    def add(self, branch: F32) -> None:
        """Add a branch's output, float32 (T, hidden), to the states."""
        self._x = self._x + branch

    def attend(self, x: F32, query: Linear, key: Linear, value: Linear) -> F32:
        """Causal attention over normed states, rows in rotary halves: (T, heads * head_size)."""
        q, k, v = query(x), key(x), value(x)
        mixed = np.empty_like(q)
        for start, stop in zip(self._bounds[:-1], self._bounds[1:], strict=True):
            part = slice(start, stop)
            mixed[part] = self._attend_one(q[part], k[part], v[part])
        return mixed

    def _attend_one(self, q: F32, k: F32, v: F32) -> F32:
        s, count = self._spec, len(q)
        group = s.heads // s.kv_heads
        queries = self._rotate(_heads(q, s.heads)).reshape(s.kv_heads, group, count, s.head_size)
        queries *= np.float32(s.head_size**-0.5)
        keys = self._rotate(_heads(k, s.kv_heads))  # (KV, S, D)
        values = _heads(v, s.kv_heads)
        future = np.triu(np.full((count, count), -np.inf, np.float32), k=1)
        mixed = np.empty((s.kv_heads, group, count, s.head_size), np.float32)
        for i in range(s.kv_heads):  # one at a time: scores are (group, S, S)
            scores = queries[i] @ keys[i].T
            scores += future
            scores -= scores.max(axis=-1, keepdims=True)
            np.exp(scores, out=scores)
            np.matmul(scores, values[i], out=mixed[i])
            mixed[i] /= scores.sum(axis=-1, keepdims=True)
        by_token: F32 = mixed.reshape(s.heads, count, s.head_size).transpose(1, 0, 2)
        return by_token.reshape(count, -1)

    def _rotate(self, x: F32) -> F32:
        """Rotary positions on (heads, S, D): dimension i turns with dimension i + rotary / 2."""
        half = self._cos.shape[1]
        cos, sin = self._cos[: x.shape[1]], self._sin[: x.shape[1]]
        first, second = x[..., :half], x[..., half : 2 * half]
        turned = np.array(x)
        turned[..., :half] = first * cos - second * sin
        turned[..., half : 2 * half] = second * cos + first * sin
        return turned


def gated(x: F32, gate: Linear, up: Linear) -> F32:
    """SwiGLU before its down projection, ``silu(gate(x)) * up(x)``: (T, feed_forward)."""
    y = gate(x)
    # exp overflows to infinity for very negative gates, and 1 / (1 + inf) is the right 0.
    with np.errstate(over="ignore"):
        y /= np.float32(1) + np.exp(-y)
    y *= up(x)
    return y


def _heads(x: F32, heads: int) -> F32:
    split: F32 = x.reshape(len(x), heads, -1).transpose(1, 0, 2)
    return split
