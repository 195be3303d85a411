"""StableLM 2: llama with LayerNorm, and positions on a part of each head."""

from __future__ import annotations

from edge_export.architectures import gguf, hugging_face
from edge_export.architectures.family import Family
from edge_export.architectures.spec import DecoderSpec
from edge_runtime.errors import UnsupportedModelError


def _from_config(config: hugging_face.Config) -> DecoderSpec:
    config.refuse("use_parallel_residual")
    config.refuse("qk_layernorm")
    return hugging_face.decoder(config, "stablelm", epsilon_key="layer_norm_eps", norm="layer")


def _from_gguf(header: gguf.Header) -> DecoderSpec:
    parallel = header.values.flag("use_parallel_residual", default=False)
    if parallel or "blk.0.attn_q_norm.weight" in header.checkpoint.tensors:
        raise UnsupportedModelError(
            "StableLM models with parallel branches or norms on queries are not supported"
        )
    return gguf.decoder(header, epsilon_key="attention.layer_norm_epsilon", norm="layer")


STABLELM = Family(("stablelm",), _from_config, ("stablelm",), _from_gguf)
