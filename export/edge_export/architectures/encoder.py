"""Sentence embedding models of the BERT family: what their configuration says, as an EncoderSpec.

Reads config.json and what sentence-transformers writes beside it; knows no weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from edge_export.architectures.values import Values
from edge_export.sources.checkpoint import Checkpoint
from edge_export.sources.hugging_face import read_json
from edge_runtime.bundle import is_safe_relative_path
from edge_runtime.errors import SourceFormatError, UnsupportedModelError

Pooling = Literal["mean", "cls"]

# RoBERTa counts positions from the padding token's id on.
_FIRST_POSITION = {"bert": 0, "roberta": 2, "xlm-roberta": 2}
ENCODER_MODEL_TYPES = frozenset(_FIRST_POSITION)
"""The ``model_type`` values that are read here."""

_NAMES: Mapping[str, str] = {
    "embedding": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "kinds": "embeddings.token_type_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
    "query": "encoder.layer.{i}.attention.self.query",
    "key": "encoder.layer.{i}.attention.self.key",
    "value": "encoder.layer.{i}.attention.self.value",
    "attention_output": "encoder.layer.{i}.attention.output.dense",
    "attention_norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "up": "encoder.layer.{i}.intermediate.dense",
    "down": "encoder.layer.{i}.output.dense",
    "feed_forward_norm": "encoder.layer.{i}.output.LayerNorm",
}
_ACTIVATIONS = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}
_POOLINGS: Mapping[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
}


@dataclass(frozen=True)
class EncoderSpec:
    """An encoder, and how it makes one vector of a text.

    Attributes:
        gelu: ONNX's name of the approximation, ``none`` or ``tanh``.
        first_position: row of the position table that the first token takes.
        max_tokens: most tokens of a text, special tokens included.
        prefix: what every tensor's name begins with.
    """

    architecture: str
    layers: int
    heads: int
    hidden_size: int
    feed_forward_size: int
    vocabulary_size: int
    norm_epsilon: float
    gelu: str
    first_position: int
    max_tokens: int
    pooling: Pooling
    normalize: bool
    prefix: str

    def name(self, role: str, layer: int | None = None, part: str = "weight") -> str:
        """The checkpoint's name of a role's tensor."""
        return f"{self.prefix}{_NAMES[role].format(i=layer)}.{part}"


def is_encoder(checkpoint: Checkpoint) -> bool:
    """Whether the checkpoint is one that embeds."""
    return checkpoint.metadata.get("model_type") in ENCODER_MODEL_TYPES


def read_encoder_spec(checkpoint: Checkpoint) -> EncoderSpec:
    """The encoder that a checkpoint describes.

    Raises:
        SourceFormatError: its configuration is incomplete or nonsensical.
        UnsupportedModelError: something that is not built here, named.
    """
    config = Values(checkpoint.metadata)
    kind = config.text("model_type")
    positions = config.text("position_embedding_type", default="absolute")
    if positions != "absolute":
        raise UnsupportedModelError(f"{checkpoint.path}: {positions!r:.40} positions are not built")
    activation = config.text("hidden_act", default="gelu")
    if activation not in _ACTIVATIONS:
        raise UnsupportedModelError(
            f"{checkpoint.path}: the activation {activation!r:.40} is not built",
            hint="built: " + ", ".join(_ACTIVATIONS),
        )
    heads, hidden = config.integer("num_attention_heads"), config.integer("hidden_size")
    if hidden % heads:
        raise SourceFormatError(f"{hidden} values do not divide among {heads} heads")
    pooling, normalize = _read_pooling(checkpoint.path)
    first = _FIRST_POSITION[kind]
    longest = config.integer("max_position_embeddings") - first
    if longest < 1:
        raise SourceFormatError(f"{checkpoint.path}: there are no positions")
    settings = Values(_optional(checkpoint.path / "sentence_bert_config.json"))
    return EncoderSpec(
        architecture=kind,
        layers=config.integer("num_hidden_layers"),
        heads=heads,
        hidden_size=hidden,
        feed_forward_size=config.integer("intermediate_size"),
        vocabulary_size=config.integer("vocab_size"),
        norm_epsilon=config.number("layer_norm_eps", default=1e-12),
        gelu=_ACTIVATIONS[activation],
        first_position=first,
        max_tokens=min(longest, settings.integer("max_seq_length", default=longest)),
        pooling=pooling,
        normalize=normalize,
        prefix=_prefix(checkpoint, kind),
    )


def _prefix(checkpoint: Checkpoint, kind: str) -> str:
    plain = f"{_NAMES['embedding']}.weight"
    outer = "bert" if kind == "bert" else "roberta"
    for prefix in ("", f"{outer}."):
        if prefix + plain in checkpoint.tensors:
            return prefix
    raise SourceFormatError(f"{checkpoint.path}: the tensor {plain} is missing")


def _read_pooling(path: Path) -> tuple[Pooling, bool]:
    """How the model makes one vector, and whether it is brought to length 1."""
    try:
        modules = json.loads((path / "modules.json").read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        raise UnsupportedModelError(
            f"{path} does not say how it makes one vector of a text: it has no modules.json",
            hint="use the model as sentence-transformers saves it",
        ) from exc
    except (OSError, ValueError, RecursionError) as exc:
        raise SourceFormatError(f"{path / 'modules.json'} cannot be read: {exc!s:.200}") from exc
    if not isinstance(modules, list) or not all(isinstance(m, dict) for m in modules):
        raise SourceFormatError(f"{path / 'modules.json'} is no list of modules")
    pooling: Pooling | None = None
    normalize = False
    for module in modules:
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind == "Pooling":
            pooling = _pooling_of(path, str(module.get("path", "")))
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer":
            raise UnsupportedModelError(f"{path}: a module {kind!r:.40} is not built")
    if pooling is None:
        raise SourceFormatError(f"{path / 'modules.json'} names no pooling")
    return pooling, normalize


def _pooling_of(path: Path, folder: str) -> Pooling:
    if not is_safe_relative_path(folder):
        raise SourceFormatError(f"{path / 'modules.json'}: {folder!r:.100} leaves the directory")
    settings = read_json(path / folder / "config.json")
    chosen = [key for key, value in settings.items() if key.startswith("pooling_mode_") and value]
    if len(chosen) != 1 or chosen[0] not in _POOLINGS:
        raise UnsupportedModelError(
            f"{path}: the pooling {', '.join(chosen) or 'none'} is not built",
            hint="built: " + ", ".join(_POOLINGS),
        )
    return _POOLINGS[chosen[0]]


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
