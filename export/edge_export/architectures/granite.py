"""Granite 3 and 4, dense: llama with scales on embeddings, branches, attention and logits."""

from __future__ import annotations

from edge_export.architectures import gguf, hugging_face
from edge_export.architectures.family import Family
from edge_export.architectures.spec import DecoderSpec


def _from_config(config: hugging_face.Config) -> DecoderSpec:
    values = config.values
    return hugging_face.decoder(
        config,
        "granite",
        attention_scale=values.number("attention_multiplier", default=1.0),
        embedding_scale=values.number("embedding_multiplier", default=1.0),
        residual_scale=values.number("residual_multiplier", default=1.0),
        logits_scale=1 / values.number("logits_scaling", default=1.0),
    )


def _from_gguf(header: gguf.Header) -> DecoderSpec:
    values = header.values
    return gguf.decoder(
        header,
        interleaved_rows=True,
        attention_scale=values.optional_number("attention.scale"),
        embedding_scale=values.number("embedding_scale", default=1.0),
        residual_scale=values.number("residual_scale", default=1.0),
        logits_scale=1 / values.number("logit_scale", default=1.0),
    )


GRANITE = Family(("granite",), _from_config, ("granite",), _from_gguf)
