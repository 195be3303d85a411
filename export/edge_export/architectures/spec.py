"""What the graph needs to know of a decoder, whatever checkpoint it came from.

Holds no weights and no names of a source; an architecture file makes it from a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

# ``gelu`` is exact, by the error function; ``gelu_tanh`` its usual approximation.
Activation = Literal["silu", "gelu", "gelu_tanh"]


@dataclass(frozen=True, eq=False)
class RotarySpec:
    """Rotary position embedding (Su et al. 2021) as frequencies, with scaling already applied.

    Args:
        inverse_frequencies: float64 (rotary_dimensions / 2,), radians a position.
        magnitude: cos and sin are multiplied by it (YaRN's attention factor); 1 otherwise.
    """

    inverse_frequencies: NDArray[np.float64]
    magnitude: float = 1.0

    @property
    def dimensions(self) -> int:
        """How many of a head's dimensions rotate."""
        return 2 * len(self.inverse_frequencies)

    def tables(self, positions: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """cos and sin, float32 (positions, dimensions / 2)."""
        angles = np.outer(np.arange(positions, dtype=np.float64), self.inverse_frequencies)
        cos, sin = np.cos(angles) * self.magnitude, np.sin(angles) * self.magnitude
        return cos.astype(np.float32), sin.astype(np.float32)


@dataclass(frozen=True)
class DecoderSpec:
    """Sizes and choices of a decoder-only transformer.

    Attributes:
        architecture: the family's name.
        layers, hidden_size, feed_forward_size, heads, kv_heads, head_size, vocabulary_size: sizes.
        context_length: tokens that the rotary tables reach.
        norm_epsilon: of every norm.
        rotary: positions in every layer that ``rotaries`` does not name.
        tied_head: the head multiplies by the embedding's table.
        interleaved_rows: query and key rows are ordered in rotary pairs, as GGUF stores some
            families.
        tensor_names: a role (:data:`GLOBAL_ROLES`, and with ``{i}`` for the layer
            :data:`LAYER_ROLES`) -> the tensor's name in the checkpoint. A norm that is not there
            is none of the model's.
        row_slices: roles that share a tensor -> their rows in it, from and to.
        rotaries: for each layer its positions, or None where it has none; empty where all are
            alike.
        windows: for each layer how many tokens, its own included, a token attends to, or None for
            all; empty where no layer has a window.
        norm: ``rms`` (Zhang and Sennrich 2019) or ``layer`` (Ba et al. 2016, with bias).
        norm_offset: added to a norm's weights; Gemma stores them less one.
        query_key_norm: a norm before the rotary embedding, of each ``head`` for itself or of all
            heads as one ``row``.
        activation: of the feed-forward layer.
        gated: ``down(act(gate(x)) * up(x))``; otherwise ``down(act(up(x)))``.
        attention_scale: of queries times keys; None is ``head_size ** -0.5``.
        attention_softcap, logits_softcap: ``cap * tanh(x / cap)``; None is no cap.
        embedding_scale, residual_scale, logits_scale: what embeddings, every branch before it is
            added, and logits are multiplied by.
    """

    architecture: str
    layers: int
    hidden_size: int
    feed_forward_size: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary_size: int
    context_length: int
    norm_epsilon: float
    rotary: RotarySpec
    tied_head: bool
    interleaved_rows: bool
    tensor_names: Mapping[str, str]
    row_slices: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    rotaries: tuple[RotarySpec | None, ...] = ()
    windows: tuple[int | None, ...] = ()
    norm: Literal["rms", "layer"] = "rms"
    norm_offset: float = 0.0
    query_key_norm: Literal["head", "row"] | None = None
    activation: Activation = "silu"
    gated: bool = True
    attention_scale: float | None = None
    attention_softcap: float | None = None
    logits_softcap: float | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logits_scale: float = 1.0

    def name(self, role: str, layer: int | None = None) -> str:
        """The checkpoint's name of a tensor."""
        return self.tensor_names[role].format(i=layer)

    def has(self, role: str) -> bool:
        """Whether the model has this tensor."""
        return role in self.tensor_names

    def rotary_of(self, layer: int) -> RotarySpec | None:
        """A layer's positions."""
        return self.rotaries[layer] if self.rotaries else self.rotary

    def window_of(self, layer: int) -> int | None:
        """How many tokens a layer looks back over, its own included; None for all."""
        return self.windows[layer] if self.windows else None


GLOBAL_ROLES = ("embedding", "final_norm", "head")
LAYER_ROLES = (
    "attention_norm",
    "query",
    "key",
    "value",
    "query_norm",
    "key_norm",
    "attention_output",
    "attention_post_norm",
    "feed_forward_norm",
    "gate",
    "up",
    "down",
    "feed_forward_post_norm",
)
