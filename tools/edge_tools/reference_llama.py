"""A plain float32 forward pass of a llama-family GGUF file: the truth that exports are held to.

Every weight is what the file's own numbers mean, decoded to float32; every product is float32. It
follows the papers (Touvron et al. 2023; RMSNorm, Zhang and Sennrich 2019; RoFormer, Su et al. 2021;
SwiGLU, Shazeer 2020; grouped queries, Ainslie et al. 2023) and the GGUF specification, and shares
no code with the exporter beyond reading the file, so that a mistake there cannot hide here. Knows
no bundle and no cache: each call reads its tokens from position 0. Holds the model in float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_runtime.errors import UnsupportedModelError

F32 = NDArray[np.float32]


@dataclass(frozen=True)
class Dimensions:
    """The numbers of one llama model; ``rotary`` is how many values of a head are rotated."""

    layers: int
    heads: int
    kv_heads: int
    head_size: int
    rotary: int
    norm_epsilon: float


class ReferenceLlama:
    """The model of one GGUF file.

    Args:
        metadata: the file's keys.
        weights: its tensors by their GGUF names, float32, linear layers as (out, in).

    Raises:
        UnsupportedModelError: another architecture, experts, or a rotary scaling other than linear
            or per-frequency factors.
    """

    def __init__(self, metadata: Mapping[str, Any], weights: Mapping[str, F32]) -> None:
        self._weights = weights
        self.dimensions = _dimensions(metadata)
        self._frequencies = _frequencies(metadata, weights, self.dimensions.rotary)

    @classmethod
    def open(cls, path: Path) -> ReferenceLlama:
        """Read a whole GGUF file; takes four bytes of memory a parameter.

        Raises:
            ExportError: as :func:`edge_export.sources.gguf.open_gguf`, and as the constructor.
        """
        from edge_export.sources.gguf import open_gguf

        with open_gguf(path) as checkpoint:
            weights = {name: tensor.array() for name, tensor in checkpoint.tensors.items()}
            return cls(dict(checkpoint.metadata), weights)

    def logits(self, token_ids: Sequence[int]) -> F32:
        """Logits after each token, float32 (S, V), for ``token_ids`` (S) from position 0."""
        return self.head(self.hidden(token_ids))

    def hidden(self, token_ids: Sequence[int]) -> F32:
        """The last normalized states, float32 (S, hidden): what the head multiplies."""
        w = self._weights
        x = w["token_embd.weight"][np.asarray(token_ids, dtype=np.int64)]  # (S, hidden)
        for i in range(self.dimensions.layers):
            x = x + self._attention(i, self._norm(x, f"blk.{i}.attn_norm.weight"))
            x = x + self._feed_forward(i, self._norm(x, f"blk.{i}.ffn_norm.weight"))
        return self._norm(x, "output_norm.weight")

    def head(self, hidden: F32) -> F32:
        """Logits (S, V) of states (S, hidden). A caller may pass a few rows at a time."""
        head = self._weights.get("output.weight", self._weights["token_embd.weight"])
        logits: F32 = hidden @ head.T
        return logits

    def _norm(self, x: F32, name: str) -> F32:
        mean_square = np.mean(np.square(x), axis=-1, keepdims=True)
        scale = np.sqrt(mean_square + np.float32(self.dimensions.norm_epsilon))
        normalized: F32 = x / scale * self._weights[name]
        return normalized

    def _linear(self, x: F32, name: str) -> F32:
        y: F32 = x @ self._weights[f"{name}.weight"].T
        bias = self._weights.get(f"{name}.bias")
        return y if bias is None else y + bias

    def _attention(self, layer: int, x: F32) -> F32:
        d = self.dimensions
        count = len(x)
        q = self._heads(self._linear(x, f"blk.{layer}.attn_q"), d.heads)  # (H, S, D)
        k = self._heads(self._linear(x, f"blk.{layer}.attn_k"), d.kv_heads)  # (KV, S, D)
        v = self._heads(self._linear(x, f"blk.{layer}.attn_v"), d.kv_heads)
        q, k = self._rotate(q), self._rotate(k)
        group = d.heads // d.kv_heads
        q = q.reshape(d.kv_heads, group * count, d.head_size)
        scores = q @ k.transpose(0, 2, 1) * np.float32(d.head_size**-0.5)  # (KV, group*S, S)
        scores = scores.reshape(d.kv_heads, group, count, count)
        scores += np.triu(np.full((count, count), -np.inf, dtype=np.float32), k=1)
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        mixed = scores.reshape(d.kv_heads, group * count, count) @ v  # (KV, group*S, D)
        mixed = mixed.reshape(d.heads, count, d.head_size).transpose(1, 0, 2)
        return self._linear(mixed.reshape(count, -1), f"blk.{layer}.attn_output")

    def _heads(self, x: F32, heads: int) -> F32:
        split: F32 = x.reshape(len(x), heads, self.dimensions.head_size).transpose(1, 0, 2)
        return split

    def _rotate(self, x: F32) -> F32:
        """Rotary positions on (heads, S, D). GGUF keeps each rotated pair side by side."""
        rotary = self.dimensions.rotary
        angles = np.arange(x.shape[1])[:, None] * self._frequencies  # (S, rotary / 2), float64
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        even, odd = x[..., 0:rotary:2], x[..., 1:rotary:2]
        turned: F32 = np.array(x)
        turned[..., 0:rotary:2] = even * cos - odd * sin
        turned[..., 1:rotary:2] = odd * cos + even * sin
        return turned

    def _feed_forward(self, layer: int, x: F32) -> F32:
        gate = self._linear(x, f"blk.{layer}.ffn_gate")
        up = self._linear(x, f"blk.{layer}.ffn_up")
        # exp overflows to infinity for very negative gates, and 1 / (1 + inf) is the right 0.
        with np.errstate(over="ignore"):
            gated = gate / (np.float32(1) + np.exp(-gate)) * up
        return self._linear(gated, f"blk.{layer}.ffn_down")


def _dimensions(metadata: Mapping[str, Any]) -> Dimensions:
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise UnsupportedModelError(
            f"the reference computes the llama family, and this file is {architecture!r}"
        )
    if metadata.get("llama.expert_count"):
        raise UnsupportedModelError("the reference computes no mixture of experts")
    heads = int(metadata["llama.attention.head_count"])
    head_size = metadata.get(
        "llama.attention.key_length", metadata["llama.embedding_length"] // heads
    )
    return Dimensions(
        layers=int(metadata["llama.block_count"]),
        heads=heads,
        kv_heads=int(metadata.get("llama.attention.head_count_kv", heads)),
        head_size=int(head_size),
        rotary=int(metadata.get("llama.rope.dimension_count", head_size)),
        norm_epsilon=float(metadata["llama.attention.layer_norm_rms_epsilon"]),
    )


def _frequencies(
    metadata: Mapping[str, Any], weights: Mapping[str, F32], rotary: int
) -> NDArray[np.float64]:
    """Radians a position, float64 (rotary / 2)."""
    base = float(metadata.get("llama.rope.freq_base", 10000.0))
    frequencies = base ** -(np.arange(0, rotary, 2, dtype=np.float64) / rotary)
    if "rope_freqs.weight" in weights:
        frequencies = frequencies / weights["rope_freqs.weight"]
    kind = metadata.get("llama.rope.scaling.type", "none")
    if kind == "linear":
        return np.asarray(frequencies / float(metadata["llama.rope.scaling.factor"]))
    if kind != "none":
        raise UnsupportedModelError(f"the reference computes no {kind!r} rotary scaling")
    return np.asarray(frequencies)
