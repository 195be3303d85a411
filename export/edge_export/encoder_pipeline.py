"""An embedding checkpoint to a bundle: the counterpart of the decoder's pipeline.

Composes the rooms beside it; knows no file format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from edge_export.architectures.encoder import EncoderSpec
from edge_export.graph.encoder import build_encoder
from edge_export.graph.norm import Norm
from edge_export.quantize.blocks import BlockQuantized, concatenate
from edge_export.quantize.recipes import (
    QuantizedGroupStats,
    Recipe,
    quantize_tensor,
    unquantized_stats,
)
from edge_export.sources.checkpoint import Checkpoint, SourceTensor
from edge_export.write import WeightsFile
from edge_runtime.bundle import EmbeddingEntry, GraphEntry, ModelDimensions
from edge_runtime.errors import SourceFormatError

GRAPH_NAME = "encoder.onnx"
WEIGHTS_NAME = "encoder.weights"


class EncoderWeights:
    """Gives the arrays of each role, quantized as the recipe says.

    Args:
        spec: sizes to check against, and the names in the checkpoint.
        checkpoint: where the tensors are.
        recipe: how to store matrices.
        on_tensor: called with a tensor's bytes in the source when it is done.

    Every method raises SourceFormatError where a tensor is missing or of the wrong shape.
    """

    def __init__(
        self,
        spec: EncoderSpec,
        checkpoint: Checkpoint,
        recipe: Recipe,
        on_tensor: Callable[[int], None],
    ) -> None:
        self._spec = spec
        self._checkpoint = checkpoint
        self._recipe = recipe
        self._on_tensor = on_tensor
        self.stats: list[tuple[str, QuantizedGroupStats]] = []
        """One entry a matrix: its role and what it became."""

    def matrix(
        self, roles: Sequence[str], layer: int | None = None
    ) -> BlockQuantized | NDArray[np.float32]:
        """As :meth:`edge_export.graph.encoder.EncoderArrays.matrix`."""
        blocks: list[BlockQuantized] = []
        plain: list[NDArray[np.float32]] = []
        for role in roles:
            tensor = self._tensor(role, layer, "weight", self._shape(role))
            if self._recipe == "f32":
                plain.append(tensor.array())
                stats = unquantized_stats(tensor, plain[-1])
            else:
                made, stats = quantize_tensor(
                    tensor,
                    recipe=self._recipe,
                    role="embedding" if role == "embedding" else "linear",
                )
                blocks.append(made)
            self.stats.append((role, stats))
            tensor.release()
            self._on_tensor(tensor.size_bytes)
        return concatenate(blocks) if blocks else np.concatenate(plain)

    def bias(self, roles: Sequence[str], layer: int | None = None) -> NDArray[np.float32]:
        """As :meth:`edge_export.graph.encoder.EncoderArrays.bias`."""
        shapes = [(self._shape(role)[0],) for role in roles]
        return np.concatenate(
            [
                self._tensor(role, layer, "bias", shape).array()
                for role, shape in zip(roles, shapes, strict=True)
            ]
        )

    def table(self, role: str) -> NDArray[np.float32]:
        """As :meth:`edge_export.graph.encoder.EncoderArrays.table`."""
        tensor = self._tensor(role, None, "weight", None)
        if len(tensor.shape) != 2 or tensor.shape[1] != self._spec.hidden_size:
            raise SourceFormatError(f"the tensor {tensor.name} has shape {tensor.shape}")
        values = tensor.array()
        self._on_tensor(tensor.size_bytes)
        return values

    def norm(self, role: str, layer: int | None = None) -> Norm:
        """As :meth:`edge_export.graph.encoder.EncoderArrays.norm`."""
        width = (self._spec.hidden_size,)
        gamma, beta = (
            self._tensor(role, layer, part, width).array() for part in ("weight", "bias")
        )
        return Norm("layer", gamma, beta, self._spec.norm_epsilon)

    def _shape(self, role: str) -> tuple[int, int]:
        spec = self._spec
        return {
            "embedding": (spec.vocabulary_size, spec.hidden_size),
            "up": (spec.feed_forward_size, spec.hidden_size),
            "down": (spec.hidden_size, spec.feed_forward_size),
        }.get(role, (spec.hidden_size, spec.hidden_size))

    def _tensor(
        self, role: str, layer: int | None, part: str, shape: tuple[int, ...] | None
    ) -> SourceTensor:
        name = self._spec.name(role, layer, part)
        if name not in self._checkpoint.tensors:
            raise SourceFormatError(f"the tensor {name} is missing")
        tensor = self._checkpoint.tensors[name]
        if shape is not None and tuple(tensor.shape) != shape:
            raise SourceFormatError(
                f"the tensor {name} has shape {tuple(tensor.shape)}, expected {shape}"
            )
        return tensor


def write_encoder(spec: EncoderSpec, weights: EncoderWeights, directory: Path) -> None:
    """Write graph and weights into the bundle in the making."""
    with WeightsFile(directory / WEIGHTS_NAME) as file:
        model = build_encoder(spec, weights, file)
    onnx.save_model(model, str(directory / GRAPH_NAME))


def encoder_graph(recipe: Recipe) -> GraphEntry:
    """The manifest's entry of the graph."""
    return GraphEntry(
        file=GRAPH_NAME,
        weights=(WEIGHTS_NAME,),
        dialect="fused",
        precision=recipe,
        providers=("CPUExecutionProvider",),
        oldest_onnxruntime="1.23",
    )


def encoder_dimensions(spec: EncoderSpec) -> ModelDimensions:
    """The manifest's dimensions; the context is what a text may have."""
    return ModelDimensions(
        layers=spec.layers,
        heads=spec.heads,
        kv_heads=spec.heads,
        head_size=spec.hidden_size // spec.heads,
        hidden_size=spec.hidden_size,
        vocabulary_size=spec.vocabulary_size,
        context_length=spec.max_tokens,
    )


def embedding_entry(spec: EncoderSpec) -> EmbeddingEntry:
    """The manifest's word on how the model embeds."""
    return EmbeddingEntry(spec.pooling, spec.normalize, spec.max_tokens)
