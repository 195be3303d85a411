"""The llama family as GGUF stores it: Llama 2 and 3, Mistral, SmolLM2, TinyLlama and their kin.

Reads metadata and tensor shapes only, never weights, except for the small table of rotary factors.
Keys and names: the GGUF specification. Rotary scaling: position interpolation (Chen et al. 2023),
YaRN (Peng et al. 2023), and the per-frequency factors that Llama 3 checkpoints carry as a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_export.architectures.spec import DecoderSpec, RotarySpec
from edge_export.sources.checkpoint import Checkpoint
from edge_runtime.errors import SourceFormatError, UnsupportedModelError

_TENSOR_NAMES = {
    "embedding": "token_embd.weight",
    "final_norm": "output_norm.weight",
    "head": "output.weight",
    "rotary_factors": "rope_freqs.weight",
    "attention_norm": "blk.{i}.attn_norm.weight",
    "query": "blk.{i}.attn_q.weight",
    "key": "blk.{i}.attn_k.weight",
    "value": "blk.{i}.attn_v.weight",
    "attention_output": "blk.{i}.attn_output.weight",
    "feed_forward_norm": "blk.{i}.ffn_norm.weight",
    "gate": "blk.{i}.ffn_gate.weight",
    "up": "blk.{i}.ffn_up.weight",
    "down": "blk.{i}.ffn_down.weight",
}
# The attention operator rotates eight pairs at a time.
_ROTARY_GRANULARITY = 16
# YaRN's own constants: rotations over the original context beyond which a frequency is kept, and
# below which it is interpolated.
_YARN_BETA_FAST, _YARN_BETA_SLOW = 32.0, 1.0


def decoder_spec(checkpoint: Checkpoint) -> DecoderSpec:
    """The decoder that a llama-family checkpoint describes.

    Raises:
        SourceFormatError: a missing or nonsensical number, or a tensor of the wrong shape.
        UnsupportedModelError: experts, or a rotary scaling that this family has no code for.
    """
    read = _Metadata(checkpoint.metadata)
    experts = read.integer("llama.expert_count", default=0)
    if experts:
        raise UnsupportedModelError(f"the model is a mixture of {experts} experts")
    hidden = read.integer("llama.embedding_length")
    heads = read.integer("llama.attention.head_count")
    head_size = read.integer("llama.attention.key_length", default=hidden // heads)
    if read.integer("llama.attention.value_length", default=head_size) != head_size:
        raise UnsupportedModelError("keys and values of different head sizes")
    if not head_size:
        raise SourceFormatError(f"{heads} heads do not share {hidden} dimensions")
    names = dict(_TENSOR_NAMES)
    embedding = _TENSOR_NAMES["embedding"]
    if embedding not in checkpoint.tensors:
        raise SourceFormatError(f"the tensor {embedding} is missing")
    tied = names["head"] not in checkpoint.tensors
    if tied:
        names["head"] = embedding
    context = read.integer("llama.context_length")
    spec = DecoderSpec(
        architecture="llama",
        layers=read.integer("llama.block_count"),
        hidden_size=hidden,
        feed_forward_size=read.integer("llama.feed_forward_length"),
        heads=heads,
        kv_heads=read.integer("llama.attention.head_count_kv", default=heads),
        head_size=head_size,
        vocabulary_size=checkpoint.tensors[embedding].shape[0],
        context_length=context,
        norm_epsilon=read.number("llama.attention.layer_norm_rms_epsilon"),
        rotary=_rotary(read, checkpoint, head_size, context),
        tied_head=tied,
        interleaved_rows=True,
        tensor_names=names,
    )
    if spec.heads % spec.kv_heads:
        raise SourceFormatError(f"{spec.heads} heads do not share {spec.kv_heads} kv heads evenly")
    return spec


def _rotary(
    read: _Metadata, checkpoint: Checkpoint, head_size: int, context_length: int
) -> RotarySpec:
    dimensions = read.integer("llama.rope.dimension_count", default=head_size)
    if dimensions % 2 or dimensions > head_size:
        raise SourceFormatError(f"llama.rope.dimension_count is {dimensions} of {head_size}")
    if dimensions % _ROTARY_GRANULARITY:
        raise UnsupportedModelError(
            f"{dimensions} rotating dimensions are not a multiple of {_ROTARY_GRANULARITY}"
        )
    base = read.number("llama.rope.freq_base", default=10000.0)
    frequencies = base ** (-np.arange(0, dimensions, 2, dtype=np.float64) / dimensions)
    if _TENSOR_NAMES["rotary_factors"] in checkpoint.tensors:
        factors = checkpoint.tensors[_TENSOR_NAMES["rotary_factors"]].array()
        if factors.shape != frequencies.shape or not (factors > 0).all():
            raise SourceFormatError(f"rope_freqs.weight has shape {factors.shape}")
        frequencies = frequencies / factors
    # Linear is what a file means that gives a factor and no kind; scale_linear is its first name.
    kind = read.text("llama.rope.scaling.type", default="linear")
    factor = read.number(
        "llama.rope.scaling.factor", default=read.number("llama.rope.scale_linear", default=1.0)
    )
    if kind == "none":
        return RotarySpec(frequencies)
    if kind == "linear":
        return RotarySpec(frequencies / factor)
    if kind == "yarn":
        if base <= 1:
            raise SourceFormatError(f"llama.rope.freq_base is {base}")
        original = read.integer(
            "llama.rope.scaling.original_context_length",
            default=max(1, int(context_length / factor)),
        )
        magnitude = read.number("llama.rope.scaling.attn_factor", default=1.0)
        return RotarySpec(
            _yarn(frequencies, base, factor, original),
            magnitude * (1.0 + 0.1 * math.log(max(factor, 1.0))),
        )
    raise UnsupportedModelError(
        f"rotary scaling {kind!r} is not known to the llama family",
        hint="known: none, linear, yarn, and per-frequency factors (rope_freqs)",
    )


def _yarn(
    frequencies: NDArray[np.float64], base: float, factor: float, original_context: int
) -> NDArray[np.float64]:
    """Interpolate low frequencies, keep high ones, blend between (YaRN, section 3.2)."""
    dimensions = 2 * len(frequencies)

    def index_of(rotations: float) -> float:
        turns = original_context / (rotations * 2 * math.pi)
        return dimensions * math.log(turns) / (2 * math.log(base))

    low = max(math.floor(index_of(_YARN_BETA_FAST)), 0)
    high = min(math.ceil(index_of(_YARN_BETA_SLOW)), dimensions - 1)
    steps = (np.arange(len(frequencies)) - low) / max(high - low, 0.001)
    interpolated = np.clip(steps, 0.0, 1.0)
    return frequencies / factor * interpolated + frequencies * (1.0 - interpolated)


class _Metadata:
    """Typed access to GGUF's key-value map, naming the key that is wrong."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def integer(self, key: str, *, default: int | None = None) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
            raise SourceFormatError(f"{key} should be a whole number, found {_shown(value)}")
        if value == 0 and default != 0:
            raise SourceFormatError(f"{key} is 0")
        return value

    def number(self, key: str, *, default: float | None = None) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise SourceFormatError(f"{key} should be a number, found {_shown(value)}")
        if not math.isfinite(value) or value <= 0:
            raise SourceFormatError(f"{key} is {value}")
        return float(value)

    def text(self, key: str, *, default: str) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise SourceFormatError(f"{key} should be a string, found {_shown(value)}")
        return value

    def _get(self, key: str, default: Any) -> Any:
        value = self._values.get(key, default)
        if value is None:
            raise SourceFormatError(f"the metadata has no {key}")
        return value


def _shown(value: object) -> str:
    """The value in one line; lists of numbers come as arrays."""
    if isinstance(value, (list, np.ndarray)):
        return f"a list of {len(value)}"
    return f"{value!r:.60}"
