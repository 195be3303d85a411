"""Qwen2 and 2.5: llama with biases on query, key and value. Qwen3: a norm on each head instead.

Both may have sliding windows on their upper layers. Biases need no word here: a linear layer has
one where the checkpoint has it.
"""

from __future__ import annotations

from edge_export.architectures import gguf, hugging_face
from edge_export.architectures.family import Family
from edge_export.architectures.spec import DecoderSpec


def _qwen2_from_config(config: hugging_face.Config) -> DecoderSpec:
    return hugging_face.decoder(config, "qwen2", windows=_windows(config))


def _qwen3_from_config(config: hugging_face.Config) -> DecoderSpec:
    return hugging_face.decoder(
        config,
        "qwen3",
        names={**hugging_face.TENSOR_NAMES, **hugging_face.QUERY_KEY_NORM_NAMES},
        windows=_windows(config),
        query_key_norm="head",
    )


def _windows(config: hugging_face.Config) -> tuple[int | None, ...]:
    if not config.values.flag("use_sliding_window", default=False):
        return ()
    if "layer_types" in config.values:
        return config.windows()
    first = config.values.integer("max_window_layers", default=0)
    return config.windows([layer >= first for layer in range(config.layers)])


def _qwen3_from_gguf(header: gguf.Header) -> DecoderSpec:
    names = {**gguf.TENSOR_NAMES, **gguf.QUERY_KEY_NORM_NAMES}
    return gguf.decoder(header, names=names, query_key_norm="head")


QWEN2 = Family(("qwen2",), _qwen2_from_config, ("qwen2",), gguf.decoder)
QWEN3 = Family(("qwen3",), _qwen3_from_config, ("qwen3",), _qwen3_from_gguf)
