"""Llama 2, 3 and their kin, SmolLM2, TinyLlama; and Mistral, which adds a sliding window."""

from __future__ import annotations

from edge_export.architectures import gguf, hugging_face
from edge_export.architectures.family import Family
from edge_export.architectures.spec import DecoderSpec


def _from_config(config: hugging_face.Config) -> DecoderSpec:
    return hugging_face.decoder(config, "llama")


def _mistral_from_config(config: hugging_face.Config) -> DecoderSpec:
    return hugging_face.decoder(config, "mistral", windows=config.windows())


def _from_gguf(header: gguf.Header) -> DecoderSpec:
    # Mistral is stored as llama; its windows are not in the file.
    return gguf.decoder(header, interleaved_rows=True)


LLAMA = Family(("llama",), _from_config, ("llama",), _from_gguf)
MISTRAL = Family(("mistral",), _mistral_from_config, (), _from_gguf)
