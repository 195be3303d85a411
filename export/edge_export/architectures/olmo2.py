"""OLMo 2: norms after each branch instead of before, and on queries and keys, all heads as one."""

from __future__ import annotations

from edge_export.architectures import gguf, hugging_face
from edge_export.architectures.family import Family
from edge_export.architectures.spec import DecoderSpec

_PRE_NORMS = ("attention_norm", "feed_forward_norm")
_NAMES = {
    **{r: n for r, n in hugging_face.TENSOR_NAMES.items() if r not in _PRE_NORMS},
    **hugging_face.QUERY_KEY_NORM_NAMES,
    "attention_post_norm": "layers.{i}.post_attention_layernorm.weight",
    "feed_forward_post_norm": "layers.{i}.post_feedforward_layernorm.weight",
}
_GGUF_NAMES = {
    **{r: n for r, n in gguf.TENSOR_NAMES.items() if r not in _PRE_NORMS},
    **gguf.QUERY_KEY_NORM_NAMES,
    **gguf.POST_NORM_NAMES,
}


def _from_config(config: hugging_face.Config) -> DecoderSpec:
    return hugging_face.decoder(config, "olmo2", names=_NAMES, query_key_norm="row")


def _from_gguf(header: gguf.Header) -> DecoderSpec:
    return gguf.decoder(header, names=_GGUF_NAMES, query_key_norm="row")


OLMO2 = Family(("olmo2",), _from_config, ("olmo2",), _from_gguf)
