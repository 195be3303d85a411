"""Which architecture file reads which checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from edge_export.architectures import llama
from edge_export.architectures.spec import DecoderSpec
from edge_export.sources.checkpoint import Checkpoint
from edge_runtime.errors import SourceFormatError, UnsupportedModelError

_GGUF_FAMILIES: Mapping[str, Callable[[Checkpoint], DecoderSpec]] = {
    "llama": llama.decoder_spec,
}


def read_spec(checkpoint: Checkpoint) -> DecoderSpec:
    """The decoder that a checkpoint describes.

    Raises:
        SourceFormatError: its metadata is incomplete or nonsensical.
        UnsupportedModelError: an architecture without a file here, named.
    """
    name = checkpoint.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise SourceFormatError(f"{checkpoint.path}: the metadata has no general.architecture")
    if name not in _GGUF_FAMILIES:
        raise UnsupportedModelError(
            f"{checkpoint.path}: the architecture {name!r} is not supported",
            hint="supported: " + ", ".join(sorted(_GGUF_FAMILIES)),
        )
    return _GGUF_FAMILIES[name](checkpoint)
