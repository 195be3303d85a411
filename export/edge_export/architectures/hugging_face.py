"""What the families of config.json have in common: its keys, and the names of the tensors.

A family's own file says in what it differs. Reads the configuration and the tensors' names and
shapes, never weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edge_export.architectures.rotary import Positions, positions_from_config
from edge_export.architectures.spec import Activation, DecoderSpec
from edge_export.architectures.values import Values
from edge_export.sources.checkpoint import Checkpoint
from edge_runtime.errors import SourceFormatError, UnsupportedModelError

TENSOR_NAMES: Mapping[str, str] = {
    "embedding": "embed_tokens.weight",
    "final_norm": "norm.weight",
    "attention_norm": "layers.{i}.input_layernorm.weight",
    "query": "layers.{i}.self_attn.q_proj.weight",
    "key": "layers.{i}.self_attn.k_proj.weight",
    "value": "layers.{i}.self_attn.v_proj.weight",
    "attention_output": "layers.{i}.self_attn.o_proj.weight",
    "feed_forward_norm": "layers.{i}.post_attention_layernorm.weight",
    "gate": "layers.{i}.mlp.gate_proj.weight",
    "up": "layers.{i}.mlp.up_proj.weight",
    "down": "layers.{i}.mlp.down_proj.weight",
}
QUERY_KEY_NORM_NAMES: Mapping[str, str] = {
    "query_norm": "layers.{i}.self_attn.q_norm.weight",
    "key_norm": "layers.{i}.self_attn.k_norm.weight",
}
_HEAD_NAME = "lm_head.weight"
# The decoder is a part of some models that also see.
_PREFIXES = ("model.", "model.language_model.", "language_model.model.", "")
_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


@dataclass(frozen=True)
class Config:
    """A config.json that a family reads.

    Attributes:
        values: its keys; of a model that also sees, those of its text part.
        checkpoint: whose it is.
        asked_context: tokens that the export is made for; None for the model's own choice.
    """

    values: Values
    checkpoint: Checkpoint
    asked_context: int | None = None

    @property
    def layers(self) -> int:
        """How many there are."""
        return self.values.integer("num_hidden_layers")

    @property
    def head_size(self) -> int:
        """Of queries, keys and values."""
        hidden, heads = (self.values.integer(key) for key in ("hidden_size", "num_attention_heads"))
        if "head_dim" not in self.values and hidden % heads:
            raise SourceFormatError(f"{heads} heads do not share {hidden} dimensions")
        return self.values.integer("head_dim", default=hidden // heads)

    def positions(
        self, *, base: float | None = None, kind: str | None = None, scaled: bool = True
    ) -> Positions:
        """Rotary positions.

        Args:
            base: in place of rope_theta.
            kind: the layers they are for, where ``rope_parameters`` has an entry for each kind.
            scaled: False leaves scaling out.
        """
        parameters = self.values.inner("rope_parameters") or self.values.inner("rope_scaling")
        parameters = parameters or Values({})
        if kind is not None and kind in parameters:
            parameters = parameters.inner(kind) or Values({})
        theta = self.values.number(
            "rope_theta", default=parameters.number("rope_theta", default=10000.0)
        )
        if "rope_theta" in parameters:
            theta = parameters.number("rope_theta")
        share = self.values.number(
            "partial_rotary_factor",
            default=parameters.number("partial_rotary_factor", default=1.0),
        )
        own = self.values.integer("max_position_embeddings")
        if "original_max_position_embeddings" in self.values:
            # Phi writes it beside the scaling, not in it.
            parameters = parameters.with_default(
                "original_max_position_embeddings",
                self.values.integer("original_max_position_embeddings"),
            )
        return positions_from_config(
            parameters if scaled else Values({}),
            base=theta if base is None else base,
            dimensions=int(self.head_size * share),
            own_context=own,
            asked=self.asked_context,
        )

    def windows(self, layers_with_one: list[bool] | None = None) -> tuple[int | None, ...]:
        """For each layer its window, () if no layer has one.

        Args:
            layers_with_one: which layers; None goes by ``layer_types``, and takes all layers where
                the configuration has none.
        """
        if "sliding_window" not in self.values:
            return ()
        window = self.values.integer("sliding_window")
        if layers_with_one is None and "layer_types" in self.values:
            layers_with_one = self.layers_of_kind("sliding_attention")
        if layers_with_one is None:
            layers_with_one = [True] * self.layers
        return tuple(window if has else None for has in layers_with_one)

    def layers_of_kind(self, kind: str) -> list[bool]:
        """Which layers ``layer_types`` gives to a kind.

        Raises:
            UnsupportedModelError: it has kinds other than full and sliding attention.
        """
        kinds = self.values.texts("layer_types", length=self.layers)
        for name in kinds:
            if name not in ("full_attention", "sliding_attention"):
                raise UnsupportedModelError(f"layers of the kind {name!r:.40} are not supported")
        return [name == kind for name in kinds]

    def refuse(self, key: str) -> None:
        """Refuse a switch that is on.

        Raises:
            UnsupportedModelError: it is.
        """
        if self.values.flag(key, default=False):
            raise UnsupportedModelError(f"models with {key} are not supported")


def read_config(checkpoint: Checkpoint, asked_context: int | None = None) -> Config:
    """A checkpoint's configuration; of a model that also sees, that of its text part."""
    values = Values(checkpoint.metadata)
    text = values.inner("text_config")
    return Config(text if text is not None else values, checkpoint, asked_context)


def decoder(
    config: Config,
    architecture: str,
    *,
    names: Mapping[str, str] = TENSOR_NAMES,
    positions: Positions | None = None,
    epsilon_key: str = "rms_norm_eps",
    activation_key: str = "hidden_act",
    **own: Any,
) -> DecoderSpec:
    """A decoder with the keys and names that most families share.

    Args:
        config: the configuration.
        architecture: the family's name.
        names: roles to tensor names, without what comes before ``layers``.
        positions: None takes those of the configuration.
        epsilon_key, activation_key: keys that some families call otherwise.
        own: fields of the spec in which the family differs.

    Raises:
        SourceFormatError: a missing or nonsensical number, or no embedding.
        UnsupportedModelError: something that no component here computes.
    """
    values = config.values
    positions = positions or config.positions()
    full_names, tied = _full_names(config, names)
    activation = values.text(activation_key, default="silu")
    if activation not in _ACTIVATIONS:
        raise UnsupportedModelError(
            f"the activation {activation!r:.40} is not supported",
            hint="supported: " + ", ".join(_ACTIVATIONS),
        )
    heads = values.integer("num_attention_heads")
    return DecoderSpec(
        **{
            "architecture": architecture,
            "layers": config.layers,
            "hidden_size": values.integer("hidden_size"),
            "feed_forward_size": values.integer("intermediate_size"),
            "heads": heads,
            "kv_heads": values.integer("num_key_value_heads", default=heads),
            "head_size": config.head_size,
            "vocabulary_size": values.integer("vocab_size"),
            "context_length": positions.context_length,
            "norm_epsilon": values.number(epsilon_key),
            "rotary": positions.rotary,
            "tied_head": tied,
            "interleaved_rows": False,
            "tensor_names": full_names,
            "activation": _ACTIVATIONS[activation],
            **own,
        }
    )


def _full_names(config: Config, names: Mapping[str, str]) -> tuple[dict[str, str], bool]:
    """The names as this checkpoint has them, and whether the head is the embedding."""
    tensors = config.checkpoint.tensors
    embedding = names["embedding"]
    prefix = next((p for p in _PREFIXES if p + embedding in tensors), None)
    if prefix is None:
        raise SourceFormatError(f"the tensor {_PREFIXES[0]}{embedding} is missing")
    full = {role: prefix + name for role, name in names.items()}
    heads = (_HEAD_NAME, f"language_model.{_HEAD_NAME}")
    head = next((name for name in heads if name in tensors), None)
    tied = config.values.flag("tie_word_embeddings", default=head is None)
    if head is None and not tied:
        raise SourceFormatError(f"the tensor {_HEAD_NAME} is missing")
    full["head"] = full["embedding"] if tied or head is None else head
    return full, tied
