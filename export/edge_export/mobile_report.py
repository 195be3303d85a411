"""How much of a static graph a phone's providers would take, told without a phone.

Asks onnxruntime's own mobile usability checker, which goes by operator, shape and known limits; it
does not run anything. Skipped where onnxruntime or its tools are missing.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import Any

import onnx


@dataclass(frozen=True)
class MobileUsability:
    """What the checker says of one graph and one provider.

    Args:
        provider: ``CoreML`` or ``NNAPI``.
        nodes: of the graph, as the checker counts them.
        supported: those that the provider would take.
        partitions: in how many pieces.
        left: the operators that it would not take, with their count.
    """

    provider: str
    nodes: int
    supported: int
    partitions: int
    left: tuple[str, ...]

    def __str__(self) -> str:
        """One line for people."""
        share = self.supported / max(1, self.nodes)
        left = f"; left: {', '.join(self.left)}" if self.left else ""
        pieces = "1 partition" if self.partitions == 1 else f"{self.partitions} partitions"
        return (
            f"{self.provider} would take {self.supported} of {self.nodes} nodes "
            f"({share:.1%}) in {pieces}{left}"
        )


def mobile_usability(model: onnx.ModelProto) -> tuple[MobileUsability, ...]:
    """Check a graph of fixed shapes.

    Args:
        model: the graph; its weights need not be loaded.

    Returns:
        CoreML (ML Program) and NNAPI; empty where there is no checker.
    """
    for name in ("ORT_DISABLE_TELEMETRY", "ORT_TELEMETRY_DISABLED"):
        os.environ[name] = "1"  # importing the checker imports onnxruntime
    try:
        from onnxruntime.tools.mobile_helpers import usability_checker
    except ImportError:
        return ()
    shaped = onnx.shape_inference.infer_shapes(model)
    operators = "coreml_supported_mlprogram_ops.md"
    checks = {
        "CoreML": usability_checker.check_coreml_partitions(shaped, True, operators),
        "NNAPI": usability_checker.check_nnapi_partitions(shaped, True),
    }
    return tuple(_told(name, shaped, info) for name, info in checks.items())


def _told(provider: str, model: onnx.ModelProto, info: Any) -> MobileUsability:
    refused = Counter(
        node.op_type
        for node in model.graph.node
        if not info.supported_ops_checker.is_op_supported(node)
    )
    return MobileUsability(
        provider=provider,
        nodes=info.num_nodes,
        supported=info.num_supported_nodes,
        partitions=info.num_partitions,
        left=tuple(f"{count} {name}" for name, count in refused.most_common()),
    )
