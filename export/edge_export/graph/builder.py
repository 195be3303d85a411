"""A graph under construction: ``op.MatMulNBits(x, ...)`` adds a node and gives its output's name.

Weights go straight to the external data file as they come, so that no more than one tensor is in
memory. Knows no model: components beside this module do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from edge_export.write import WeightsFile
from edge_runtime.errors import SourceFormatError

STANDARD_OPSET = 21
MICROSOFT_DOMAIN = "com.microsoft"
# Operators of onnxruntime's own domain that the fused dialect uses.
_MICROSOFT_OPERATORS = frozenset(
    {
        "FusedMatMul",
        "GatherBlockQuantized",
        "GroupQueryAttention",
        "MultiHeadAttention",
        "MatMulNBits",
        "QuickGelu",
        "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
    }
)

Shape = Sequence[int | str]


class GraphBuilder:
    """Collects nodes, inputs and outputs; weights are appended to ``weights``.

    Args:
        name: the graph's name.
        weights: the external data file that initializers go to.
    """

    def __init__(self, name: str, weights: WeightsFile) -> None:
        self._name = name
        self._weights = weights
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._scope: list[str] = []
        self._used: dict[str, int] = {}

    def __getattr__(self, operator: str) -> Callable[..., str]:
        """``builder.Mul(a, b)``: add a node with one output and give the output's name."""
        if operator.startswith("_"):
            raise AttributeError(operator)

        def add(*inputs: str, **attributes: Any) -> str:
            return self.node(operator, inputs, outputs=1, **attributes)[0]

        return add

    def node(
        self,
        operator: str,
        inputs: Sequence[str],
        *,
        outputs: int | Sequence[str],
        **attributes: Any,
    ) -> tuple[str, ...]:
        """Add a node.

        Args:
            operator: its type; the domain follows from it.
            inputs: names of values, "" for an absent optional one.
            outputs: how many outputs to name after the scope, or their names.

        Returns:
            The outputs' names.
        """
        name = self._unique(operator)
        if isinstance(outputs, int):
            suffixes = [""] if outputs == 1 else [f".{i}" for i in range(outputs)]
            outputs = [f"{name}{suffix}" for suffix in suffixes]
        domain = MICROSOFT_DOMAIN if operator in _MICROSOFT_OPERATORS else ""
        self._nodes.append(
            helper.make_node(
                operator, list(inputs), list(outputs), name=name, domain=domain, **attributes
            )
        )
        return tuple(outputs)

    def rename(self, value: str, name: str) -> None:
        """Call the output of the last node otherwise; no other node may read it yet."""
        outputs = self._nodes[-1].output
        assert list(outputs) == [value], "not the last node's output"
        outputs[0] = name

    def scope(self, name: str) -> _Scope:
        """``with builder.scope("layers.0"):`` prefixes the names made inside."""
        return _Scope(self._scope, name)

    def root(self) -> _Scope:
        """``with builder.root():`` names made inside have no prefix."""
        return _Scope(self._scope, None)

    def input(self, name: str, kind: int, shape: Shape) -> str:
        """Declare a graph input; ``kind`` is an onnx TensorProto data type."""
        self._inputs.append(helper.make_tensor_value_info(name, kind, list(shape)))
        return name

    def output(self, name: str, kind: int, shape: Shape) -> str:
        """Declare a graph output that a node already produces."""
        self._outputs.append(helper.make_tensor_value_info(name, kind, list(shape)))
        return name

    def weight(self, name: str, array: NDArray[Any]) -> str:
        """Append an array to the weights file and give its name.

        Raises:
            SourceFormatError: a value is infinite or not a number. Integer products turn such
                values into others, so that the graph's own output would not show it.
        """
        name = self._unique(name)
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise SourceFormatError(
                f"the weights {name} have an infinite value or one that is not a number",
                hint="the file is damaged, or its makers' training went wrong: use another file",
            )
        self._declare(name, array.dtype, array.shape, self._weights.append(array))
        return name

    def view(self, name: str, of: str, shape: Sequence[int]) -> str:
        """The same bytes of the weights file under another shape, so that nothing is copied."""
        original = next(t for t in self._initializers if t.name == of)
        proto = onnx.TensorProto()
        proto.CopyFrom(original)
        proto.name = self._unique(name)
        del proto.dims[:]
        proto.dims.extend(shape)
        self._initializers.append(proto)
        return str(proto.name)

    def share(self, tensor: onnx.TensorProto, kind: int, shape: Sequence[int]) -> str:
        """Another graph's external initializer under a type and shape of the same bytes."""
        proto = onnx.TensorProto()
        proto.CopyFrom(tensor)
        proto.name = self._unique(tensor.name)
        proto.data_type = kind
        del proto.dims[:]
        proto.dims.extend(shape)
        self._initializers.append(proto)
        return str(proto.name)

    def packed_weight(
        self, name: str, data: NDArray[np.uint8], kind: int, shape: Sequence[int]
    ) -> str:
        """As `weight`, for bytes that hold values of ``kind``, several to a byte perhaps."""
        name = self._unique(name)
        self._declare_as(name, kind, shape, self._weights.append(data))
        return name

    def constant(self, name: str, array: NDArray[Any]) -> str:
        """A small value kept inside the graph file."""
        name = self._unique(name)
        self._initializers.append(onnx.numpy_helper.from_array(np.asarray(array), name))
        return name

    def model(self) -> onnx.ModelProto:
        """The finished model; its weights are external, named by the file's own name."""
        graph = helper.make_graph(
            self._nodes, self._name, self._inputs, self._outputs, self._initializers
        )
        return helper.make_model(
            graph,
            producer_name="edge-runtime",
            ir_version=10,
            opset_imports=[
                helper.make_opsetid("", STANDARD_OPSET),
                helper.make_opsetid(MICROSOFT_DOMAIN, 1),
            ],
        )

    def _declare(
        self, name: str, dtype: np.dtype[Any], shape: Sequence[int], extent: tuple[int, int]
    ) -> None:
        self._declare_as(name, helper.np_dtype_to_tensor_dtype(dtype), shape, extent)

    def _declare_as(
        self, name: str, kind: int, shape: Sequence[int], extent: tuple[int, int]
    ) -> None:
        proto = TensorProto(name=name, data_type=kind, dims=shape)
        proto.data_location = TensorProto.EXTERNAL
        offset, length = extent
        pairs = (("location", self._weights.name), ("offset", offset), ("length", length))
        for key, value in pairs:
            proto.external_data.add(key=key, value=str(value))
        self._initializers.append(proto)

    def _unique(self, name: str) -> str:
        full = ".".join([*self._scope, name])
        count = self._used.get(full, 0)
        self._used[full] = count + 1
        return full if count == 0 else f"{full}.{count}"


class _Scope:
    def __init__(self, stack: list[str], name: str | None) -> None:
        self._stack, self._name = stack, name
        self._before: list[str] = []

    def __enter__(self) -> None:
        self._before = list(self._stack)
        if self._name is None:
            self._stack.clear()
        else:
            self._stack.append(self._name)

    def __exit__(self, *_: object) -> None:
        self._stack[:] = self._before
