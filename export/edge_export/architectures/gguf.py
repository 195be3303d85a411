"""What the families of GGUF have in common: its keys, and the names of the tensors.

A family's own file says in what it differs. Reads metadata and tensor shapes only, never weights,
except for the small tables of rotary factors. Keys and names: the GGUF specification, and
llama.cpp's for what that leaves open.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edge_export.architectures.rotary import (
    Positions,
    longrope_magnitude,
    plain_frequencies,
    yarn,
)
from edge_export.architectures.spec import DecoderSpec, RotarySpec
from edge_export.architectures.values import Values
from edge_export.sources.checkpoint import Checkpoint
from edge_runtime.errors import SourceFormatError, UnsupportedModelError

TENSOR_NAMES: Mapping[str, str] = {
    "embedding": "token_embd.weight",
    "final_norm": "output_norm.weight",
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
QUERY_KEY_NORM_NAMES: Mapping[str, str] = {
    "query_norm": "blk.{i}.attn_q_norm.weight",
    "key_norm": "blk.{i}.attn_k_norm.weight",
}
POST_NORM_NAMES: Mapping[str, str] = {
    "attention_post_norm": "blk.{i}.post_attention_norm.weight",
    "feed_forward_post_norm": "blk.{i}.post_ffw_norm.weight",
}
_HEAD_NAME = "output.weight"
_ROTARY_FACTORS = "rope_freqs.weight"
_SHORT_FACTORS, _LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"


@dataclass(frozen=True)
class Header:
    """A GGUF file's keys that a family reads.

    Attributes:
        architecture: its general.architecture, which every key begins with.
        values: the keys, without it.
        checkpoint: whose they are.
        asked_context: tokens that the export is made for; None for the model's own choice.
    """

    architecture: str
    values: Values
    checkpoint: Checkpoint
    asked_context: int | None = None

    @property
    def layers(self) -> int:
        """How many there are."""
        return self.values.integer("block_count")

    @property
    def head_size(self) -> int:
        """Of queries, keys and values."""
        hidden, heads = (
            self.values.integer(key) for key in ("embedding_length", "attention.head_count")
        )
        size = self.values.integer("attention.key_length", default=hidden // heads)
        if not size:
            raise SourceFormatError(f"{heads} heads do not share {hidden} dimensions")
        if self.values.integer("attention.value_length", default=size) != size:
            raise UnsupportedModelError("keys and values of different head sizes")
        return size

    def positions(self, *, base: float | None = None, scaled: bool = True) -> Positions:
        """Rotary positions.

        Args:
            base: in place of the file's.
            scaled: False leaves scaling out.
        """
        own = self.values.integer("context_length")
        if self.asked_context is not None and self.asked_context > own:
            raise UnsupportedModelError(
                f"a context of {self.asked_context} tokens was asked for, and the model reaches "
                f"{own}"
            )
        context = self.asked_context or own
        dimensions = self.values.integer("rope.dimension_count", default=self.head_size)
        if dimensions > self.head_size:
            raise SourceFormatError(
                f"{self.architecture}.rope.dimension_count is {dimensions} of {self.head_size}"
            )
        if base is None:
            base = self.values.number("rope.freq_base", default=10000.0)
        frequencies = plain_frequencies(base, dimensions)
        if not scaled:
            return Positions(RotarySpec(frequencies), context)
        if _SHORT_FACTORS in self.checkpoint.tensors:
            return self._longrope(RotarySpec(frequencies), own)
        if _ROTARY_FACTORS in self.checkpoint.tensors:
            frequencies = frequencies / self._factors(_ROTARY_FACTORS, len(frequencies))
        # Linear is what a file means that gives a factor and no kind; scale_linear is its first
        # name.
        kind = self.values.text("rope.scaling.type", default="linear")
        factor = self.values.number(
            "rope.scaling.factor", default=self.values.number("rope.scale_linear", default=1.0)
        )
        if kind == "none":
            return Positions(RotarySpec(frequencies), context)
        if kind == "linear":
            return Positions(RotarySpec(frequencies / factor), context)
        if kind != "yarn":
            raise UnsupportedModelError(
                f"rotary scaling {kind!r} is not known to the {self.architecture} family",
                hint="known: none, linear, yarn, and per-frequency factors (rope_freqs)",
            )
        original = self.values.integer(
            "rope.scaling.original_context_length", default=max(1, int(own / factor))
        )
        magnitude = self.values.number("rope.scaling.attn_factor", default=1.0)
        rotary = RotarySpec(
            yarn(frequencies, base, factor, original),
            magnitude * (1.0 + 0.1 * math.log(max(factor, 1.0))),
        )
        return Positions(rotary, context)

    def _longrope(self, plain: RotarySpec, own_context: int) -> Positions:
        original = self.values.integer("rope.scaling.original_context_length", default=own_context)
        context = self.asked_context or min(original, own_context)
        name = _LONG_FACTORS if context > original else _SHORT_FACTORS
        factors = self._factors(name, len(plain.inverse_frequencies))
        magnitude = self.values.number(
            "rope.scaling.attn_factor",
            default=longrope_magnitude(own_context / original, original),
        )
        return Positions(RotarySpec(plain.inverse_frequencies / factors, magnitude), context)

    def _factors(self, name: str, count: int) -> Any:
        if name not in self.checkpoint.tensors:
            raise SourceFormatError(f"the tensor {name} is missing")
        factors = self.checkpoint.tensors[name].array()
        if factors.shape != (count,) or not (factors > 0).all():
            raise SourceFormatError(f"{name} has shape {factors.shape}")
        return factors

    def windows(self, layers_with_one: list[bool] | None = None) -> tuple[int | None, ...]:
        """For each layer its window, () if no layer has one; None means all layers."""
        if "attention.sliding_window" not in self.values:
            return ()
        window = self.values.integer("attention.sliding_window", default=0)
        if not window:
            return ()
        return tuple(window if has else None for has in layers_with_one or [True] * self.layers)


def read_header(
    checkpoint: Checkpoint, architecture: str, asked_context: int | None = None
) -> Header:
    """A GGUF checkpoint's keys."""
    values = Values(checkpoint.metadata, f"{architecture}.")
    return Header(architecture, values, checkpoint, asked_context)


def decoder(
    header: Header,
    *,
    names: Mapping[str, str] = TENSOR_NAMES,
    positions: Positions | None = None,
    epsilon_key: str = "attention.layer_norm_rms_epsilon",
    interleaved_rows: bool = False,
    **own: Any,
) -> DecoderSpec:
    """A decoder with the keys and names that most families share.

    Args:
        header: the file's keys.
        names: roles to tensor names.
        positions: None takes those of the file.
        epsilon_key: a key that some families call otherwise.
        interleaved_rows: whether the converter orders query and key rows in rotary pairs.
        own: fields of the spec in which the family differs.

    Raises:
        SourceFormatError: a missing or nonsensical number, or no embedding.
        UnsupportedModelError: experts, or a rotary scaling that is not known.
    """
    values = header.values
    experts = values.integer("expert_count", default=0)
    if experts:
        raise UnsupportedModelError(f"the model is a mixture of {experts} experts")
    heads = values.integer("attention.head_count")
    head_size = header.head_size
    positions = positions or header.positions()
    tensors = header.checkpoint.tensors
    embedding = names["embedding"]
    if embedding not in tensors:
        raise SourceFormatError(f"the tensor {embedding} is missing")
    tied = _HEAD_NAME not in tensors
    return DecoderSpec(
        **{
            "architecture": header.architecture,
            "layers": header.layers,
            "hidden_size": values.integer("embedding_length"),
            "feed_forward_size": values.integer("feed_forward_length"),
            "heads": heads,
            "kv_heads": values.integer("attention.head_count_kv", default=heads),
            "head_size": head_size,
            "vocabulary_size": tensors[embedding].shape[0],
            "context_length": positions.context_length,
            "norm_epsilon": values.number(epsilon_key),
            "rotary": positions.rotary,
            "tied_head": tied,
            "interleaved_rows": interleaved_rows,
            "tensor_names": {**names, "head": embedding if tied else _HEAD_NAME},
            **own,
        }
    )
