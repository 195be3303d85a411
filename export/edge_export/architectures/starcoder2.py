"""StarCoder2: LayerNorm and biases everywhere, a feed-forward layer without a gate, a window."""

from __future__ import annotations

from edge_export.architectures import gguf, hugging_face
from edge_export.architectures.family import Family
from edge_export.architectures.spec import DecoderSpec

_NAMES = {
    **{r: n for r, n in hugging_face.TENSOR_NAMES.items() if r != "gate"},
    "up": "layers.{i}.mlp.c_fc.weight",
    "down": "layers.{i}.mlp.c_proj.weight",
}
_GGUF_NAMES = {r: n for r, n in gguf.TENSOR_NAMES.items() if r != "gate"}


def _from_config(config: hugging_face.Config) -> DecoderSpec:
    return hugging_face.decoder(
        config,
        "starcoder2",
        names=_NAMES,
        epsilon_key="norm_epsilon",
        norm="layer",
        gated=False,
        windows=config.windows(),
    )


def _from_gguf(header: gguf.Header) -> DecoderSpec:
    return gguf.decoder(
        header,
        names=_GGUF_NAMES,
        epsilon_key="attention.layer_norm_epsilon",
        norm="layer",
        gated=False,
        activation="gelu_tanh",
        windows=header.windows(),
    )


STARCODER2 = Family(("starcoder2",), _from_config, ("starcoder2",), _from_gguf)
