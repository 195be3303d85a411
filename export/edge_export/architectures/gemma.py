"""Gemma 2, and the text part of Gemma 3.

Both norm what a branch gives as well as what it takes, scale embeddings by the square root of the
hidden size, store a norm's weights less one, and let some layers look back over a window only.
Gemma 2 caps logits and attention; Gemma 3 norms queries and keys instead, and gives its windowed
layers positions of their own.
"""

from __future__ import annotations

from edge_export.architectures import gguf, hugging_face
from edge_export.architectures.family import Family
from edge_export.architectures.spec import DecoderSpec

_NAMES = {
    **hugging_face.TENSOR_NAMES,
    "attention_post_norm": "layers.{i}.post_attention_layernorm.weight",
    "feed_forward_norm": "layers.{i}.pre_feedforward_layernorm.weight",
    "feed_forward_post_norm": "layers.{i}.post_feedforward_layernorm.weight",
}
_GGUF_NAMES = {**gguf.TENSOR_NAMES, **gguf.POST_NORM_NAMES}
_LOCAL_BASE = 10000.0
_GEMMA3_PATTERN = 6  # every sixth layer looks back over everything
# The largest of each generation divide by another number than the head's size.
_GEMMA2_27B_LAYERS, _GEMMA3_27B_LAYERS = 46, 62


def _gemma2_from_config(config: hugging_face.Config) -> DecoderSpec:
    values = config.values
    windowed = (
        None if "layer_types" in values else [layer % 2 == 0 for layer in range(config.layers)]
    )
    return hugging_face.decoder(
        config,
        "gemma2",
        names=_NAMES,
        activation_key="hidden_activation",
        norm_offset=1.0,
        windows=config.windows(windowed),
        attention_scale=values.number("query_pre_attn_scalar") ** -0.5,
        attention_softcap=values.optional_number("attn_logit_softcapping"),
        logits_softcap=values.optional_number("final_logit_softcapping"),
        embedding_scale=values.integer("hidden_size") ** 0.5,
    )


def _gemma3_from_config(config: hugging_face.Config) -> DecoderSpec:
    values = config.values
    config.refuse("use_bidirectional_attention")
    if "layer_types" in values:
        windowed = config.layers_of_kind("sliding_attention")
    else:
        pattern = values.integer("sliding_window_pattern", default=_GEMMA3_PATTERN)
        windowed = [(layer + 1) % pattern != 0 for layer in range(config.layers)]
    everywhere = config.positions(kind="full_attention")
    parameters = values.inner("rope_parameters")
    if parameters is not None and "sliding_attention" in parameters:
        local = config.positions(kind="sliding_attention")
    else:
        base = values.number("rope_local_base_freq", default=_LOCAL_BASE)
        local = config.positions(base=base, scaled=False)
    return hugging_face.decoder(
        config,
        "gemma3",
        names={**_NAMES, **hugging_face.QUERY_KEY_NORM_NAMES},
        positions=everywhere,
        rotaries=tuple(local.rotary if has else everywhere.rotary for has in windowed),
        activation_key="hidden_activation",
        query_key_norm="head",
        norm_offset=1.0,
        windows=config.windows(windowed),
        attention_scale=values.number("query_pre_attn_scalar") ** -0.5,
        attention_softcap=values.optional_number("attn_logit_softcapping"),
        logits_softcap=values.optional_number("final_logit_softcapping"),
        embedding_scale=values.integer("hidden_size") ** 0.5,
    )


def _gemma2_from_gguf(header: gguf.Header) -> DecoderSpec:
    values = header.values
    return gguf.decoder(
        header,
        names=_GGUF_NAMES,
        activation="gelu_tanh",
        windows=header.windows([layer % 2 == 0 for layer in range(header.layers)]),
        attention_scale=_gguf_attention_scale(header, _GEMMA2_27B_LAYERS),
        attention_softcap=values.optional_number("attn_logit_softcapping"),
        logits_softcap=values.optional_number("final_logit_softcapping"),
        embedding_scale=values.integer("embedding_length") ** 0.5,
    )


def _gemma3_from_gguf(header: gguf.Header) -> DecoderSpec:
    windowed = [(layer + 1) % _GEMMA3_PATTERN != 0 for layer in range(header.layers)]
    base = header.values.number("rope.freq_base_swa", default=_LOCAL_BASE)
    everywhere = header.positions()
    local = header.positions(base=base, scaled=False)
    return gguf.decoder(
        header,
        names={**_GGUF_NAMES, **gguf.QUERY_KEY_NORM_NAMES},
        positions=everywhere,
        rotaries=tuple(local.rotary if has else everywhere.rotary for has in windowed),
        activation="gelu_tanh",
        query_key_norm="head",
        windows=header.windows(windowed),
        attention_scale=_gguf_attention_scale(header, _GEMMA3_27B_LAYERS),
        logits_softcap=header.values.optional_number("final_logit_softcapping"),
        embedding_scale=header.values.integer("embedding_length") ** 0.5,
    )


def _gguf_attention_scale(header: gguf.Header, largest_layers: int) -> float | None:
    """The file does not say; llama.cpp knows the largest models by their layers."""
    if header.layers != largest_layers:
        return None
    values = header.values
    per_head = values.integer("embedding_length") / values.integer("attention.head_count")
    return float(per_head**-0.5)


GEMMA2 = Family(("gemma2",), _gemma2_from_config, ("gemma2",), _gemma2_from_gguf)
GEMMA3 = Family(("gemma3_text", "gemma3"), _gemma3_from_config, ("gemma3",), _gemma3_from_gguf)
