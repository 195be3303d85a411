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
# Ten million tokens are the most that a model was made for.
_LONGEST_CONTEXT = 1 << 24


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
    spec = _GGUF_FAMILIES[name](checkpoint)
    _check_sizes(spec, checkpoint)
    return spec


def _check_sizes(spec: DecoderSpec, checkpoint: Checkpoint) -> None:
    """Refuse at once what would only fail after hours, or after all memory is taken."""
    if spec.context_length > _LONGEST_CONTEXT:
        raise SourceFormatError(
            f"{checkpoint.path}: a context of {spec.context_length} tokens is longer than any "
            f"model's ({_LONGEST_CONTEXT})"
        )
    last = spec.name("attention_norm", spec.layers - 1)
    if last not in checkpoint.tensors:
        raise SourceFormatError(
            f"{checkpoint.path}: there should be {spec.layers} layers, and the tensor {last} is "
            "missing"
        )
