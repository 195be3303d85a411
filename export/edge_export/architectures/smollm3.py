"""SmolLM3: llama in which every fourth layer has no positions."""

from __future__ import annotations

from edge_export.architectures import gguf, hugging_face
from edge_export.architectures.family import Family
from edge_export.architectures.rotary import Positions
from edge_export.architectures.spec import DecoderSpec, RotarySpec

_INTERVAL = 4


def _from_config(config: hugging_face.Config) -> DecoderSpec:
    values, layers = config.values, config.layers
    if "no_rope_layers" in values:
        rotating = values.flags(
            "no_rope_layers", length=layers
        )  # 1 has positions, despite its name
    else:
        interval = values.integer("no_rope_layer_interval", default=_INTERVAL)
        rotating = [(layer + 1) % interval != 0 for layer in range(layers)]
    positions = config.positions()
    windowed = values.flag("use_sliding_window", default=False)
    return hugging_face.decoder(
        config,
        "smollm3",
        positions=positions,
        rotaries=_rotaries(positions, rotating),
        windows=config.windows() if windowed else (),
    )


def _from_gguf(header: gguf.Header) -> DecoderSpec:
    # The file does not say which layers; llama.cpp counts likewise.
    rotating = [(layer + 1) % _INTERVAL != 0 for layer in range(header.layers)]
    positions = header.positions()
    return gguf.decoder(
        header,
        positions=positions,
        rotaries=_rotaries(positions, rotating),
        interleaved_rows=True,
    )


def _rotaries(positions: Positions, rotating: list[bool]) -> tuple[RotarySpec | None, ...]:
    return tuple(positions.rotary if rotates else None for rotates in rotating)


SMOLLM3 = Family(("smollm3",), _from_config, ("smollm3",), _from_gguf)
