"""Norms: of the residual stream together with the addition before it, and of a value alone.

Knows operators and shapes; what is normed, and with which weights, is the caller's to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edge_export.graph.builder import GraphBuilder


@dataclass(frozen=True, eq=False)
class Norm:
    """A norm's weights.

    Attributes:
        kind: ``rms`` or ``layer``.
        gamma: float32 (width,).
        beta: float32 (width,), or None.
        epsilon: added to the variance.
    """

    kind: Literal["rms", "layer"]
    gamma: NDArray[np.float32]
    beta: NDArray[np.float32] | None
    epsilon: float


def norm(op: GraphBuilder, name: str, x: str, weights: Norm) -> str:
    """The norm of ``x`` over its last axis; ``name`` is what its weights are called."""
    gamma = op.weight(name, weights.gamma)
    if weights.kind == "layer":
        inputs = [x, gamma]
        if weights.beta is not None:
            inputs.append(op.weight(f"{name}.bias", weights.beta))
        return op.LayerNormalization(*inputs, axis=-1, epsilon=weights.epsilon)
    return op.SimplifiedLayerNormalization(x, gamma, axis=-1, epsilon=weights.epsilon, stash_type=1)


def add_and_norm(
    op: GraphBuilder, name: str, branch: str, residual: str, weights: Norm
) -> tuple[str, str]:
    """The norm of ``branch + residual``, and that sum, in one pass."""
    inputs = [branch, residual, op.weight(name, weights.gamma)]
    operator = "SkipSimplifiedLayerNormalization"
    if weights.kind == "layer":
        operator = "SkipLayerNormalization"
        if weights.beta is not None:
            inputs.append(op.weight(f"{name}.bias", weights.beta))
    normed, _, _, total = op.node(operator, inputs, outputs=4, epsilon=weights.epsilon)
    return normed, total
