"""Which architecture file reads which checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

from edge_export.architectures import gguf, hugging_face
from edge_export.architectures.family import Family
from edge_export.architectures.gemma import GEMMA2, GEMMA3
from edge_export.architectures.granite import GRANITE
from edge_export.architectures.llama import LLAMA, MISTRAL
from edge_export.architectures.olmo2 import OLMO2
from edge_export.architectures.phi3 import PHI3
from edge_export.architectures.qwen import QWEN2, QWEN3
from edge_export.architectures.smollm3 import SMOLLM3
from edge_export.architectures.spec import DecoderSpec
from edge_export.architectures.stablelm import STABLELM
from edge_export.architectures.starcoder2 import STARCODER2
from edge_export.sources.checkpoint import Checkpoint
from edge_runtime.errors import SourceFormatError, UnsupportedModelError

FAMILIES: tuple[Family, ...] = (
    *(LLAMA, MISTRAL, QWEN2, QWEN3, SMOLLM3, GEMMA2, GEMMA3, PHI3, GRANITE),
    *(OLMO2, STARCODER2, STABLELM),
)
_BY_MODEL_TYPE: Mapping[str, Family] = {name: f for f in FAMILIES for name in f.model_types}
_BY_GGUF_NAME: Mapping[str, Family] = {name: f for f in FAMILIES for name in f.gguf_names}
# Ten million tokens are the most that a model was made for.
_LONGEST_CONTEXT = 1 << 24
_MOST_VALUES = 1 << 24  # of a row of weights, and far beyond any


def read_spec(checkpoint: Checkpoint, context_length: int | None = None) -> DecoderSpec:
    """The decoder that a checkpoint describes.

    Args:
        checkpoint: of any format.
        context_length: tokens that the export is made for; None for the model's own choice.

    Raises:
        SourceFormatError: its metadata is incomplete or nonsensical.
        UnsupportedModelError: an architecture without a file here, named; or more tokens than the
            model reaches.
    """
    if checkpoint.format == "gguf":
        name = _name(checkpoint, "general.architecture", _BY_GGUF_NAME)
        header = gguf.read_header(checkpoint, name, context_length)
        spec = _BY_GGUF_NAME[name].from_gguf(header)
    else:
        name = _name(checkpoint, "model_type", _BY_MODEL_TYPE)
        config = hugging_face.read_config(checkpoint, context_length)
        spec = _BY_MODEL_TYPE[name].from_config(config)
    _check_sizes(spec, checkpoint)
    return spec


def _name(checkpoint: Checkpoint, key: str, families: Mapping[str, Family]) -> str:
    name = checkpoint.metadata.get(key)
    if not isinstance(name, str):
        raise SourceFormatError(f"{checkpoint.path}: the metadata has no {key}")
    if name not in families:
        # Hugging Face's mark of a model that is a Python file of its repository.
        code = " (it is Python code of its own, which is never executed)"
        raise UnsupportedModelError(
            f"{checkpoint.path}: the architecture {name!r:.60} is not supported"
            + (code if checkpoint.metadata.get("auto_map") else ""),
            hint="supported: " + ", ".join(sorted(families)),
        )
    return name


def _check_sizes(spec: DecoderSpec, checkpoint: Checkpoint) -> None:
    """Refuse at once what would only fail after hours, or after all memory is taken."""
    if spec.heads % spec.kv_heads:
        raise SourceFormatError(f"{spec.heads} heads do not share {spec.kv_heads} kv heads evenly")
    if max(spec.hidden_size, spec.feed_forward_size, spec.heads * spec.head_size) > _MOST_VALUES:
        raise SourceFormatError(f"{checkpoint.path}: rows of more than {_MOST_VALUES} values")
    if spec.context_length > _LONGEST_CONTEXT:
        raise SourceFormatError(
            f"{checkpoint.path}: a context of {spec.context_length} tokens is longer than any "
            f"model's ({_LONGEST_CONTEXT})"
        )
    last = spec.name("down", spec.layers - 1)
    if last not in checkpoint.tensors:
        raise SourceFormatError(
            f"{checkpoint.path}: there should be {spec.layers} layers, and the tensor {last} is "
            "missing"
        )
