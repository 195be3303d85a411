"""Phi-3, 3.5 and 4-mini: llama whose projections lie in one tensor, with a window and LongRoPE."""

from __future__ import annotations

from edge_export.architectures import gguf, hugging_face
from edge_export.architectures.family import Family
from edge_export.architectures.spec import DecoderSpec

_NAMES = {
    **hugging_face.TENSOR_NAMES,
    **dict.fromkeys(("query", "key", "value"), "layers.{i}.self_attn.qkv_proj.weight"),
    **dict.fromkeys(("gate", "up"), "layers.{i}.mlp.gate_up_proj.weight"),
}
_GGUF_NAMES = {
    **gguf.TENSOR_NAMES,
    **dict.fromkeys(("query", "key", "value"), "blk.{i}.attn_qkv.weight"),
    **dict.fromkeys(("gate", "up"), "blk.{i}.ffn_up.weight"),
}


def _from_config(config: hugging_face.Config) -> DecoderSpec:
    values = config.values
    heads = values.integer("num_attention_heads")
    return hugging_face.decoder(
        config,
        "phi3",
        names=_NAMES,
        windows=config.windows(),
        row_slices=_slices(
            heads,
            values.integer("num_key_value_heads", default=heads),
            config.head_size,
            values.integer("intermediate_size"),
        ),
    )


def _from_gguf(header: gguf.Header) -> DecoderSpec:
    values = header.values
    heads = values.integer("attention.head_count")
    return gguf.decoder(
        header,
        names=_GGUF_NAMES,
        windows=header.windows(),
        row_slices=_slices(
            heads,
            values.integer("attention.head_count_kv", default=heads),
            header.head_size,
            values.integer("feed_forward_length"),
        ),
    )


def _slices(
    heads: int, kv_heads: int, head_size: int, feed_forward_size: int
) -> dict[str, tuple[int, int]]:
    queries, keys = heads * head_size, kv_heads * head_size
    return {
        "query": (0, queries),
        "key": (queries, queries + keys),
        "value": (queries + keys, queries + 2 * keys),
        "gate": (0, feed_forward_size),
        "up": (feed_forward_size, 2 * feed_forward_size),
    }


PHI3 = Family(("phi3",), _from_config, ("phi3",), _from_gguf)
