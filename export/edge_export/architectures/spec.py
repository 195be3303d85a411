"""What the graph needs to know of a decoder, whatever checkpoint it came from.

Holds no weights and no names of a source; an architecture file makes it from a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
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

    ``tensor_names`` maps the roles of :data:`GLOBAL_ROLES` and, with ``{i}`` for the layer, of
    :data:`LAYER_ROLES` to names in the checkpoint. ``interleaved_rows`` says that query and key
    rows are ordered in rotary pairs, as GGUF's llama family stores them.
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

    def name(self, role: str, layer: int | None = None) -> str:
        """The checkpoint's name of a tensor."""
        return self.tensor_names[role].format(i=layer)


GLOBAL_ROLES = ("embedding", "final_norm", "head")
LAYER_ROLES = (
    "attention_norm",
    "query",
    "key",
    "value",
    "attention_output",
    "feed_forward_norm",
    "gate",
    "up",
    "down",
)
