"""A fused graph's weights for a portable one: the same bytes under other names, or in float16.

Knows the layout of MatMulNBits and of a blocked DequantizeLinear; knows no layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edge_export.graph.builder import GraphBuilder
from edge_export.quantize.blocks import BlockQuantized


class FusedWeights:
    """The initializers of a fused graph.

    Args:
        graph: the fused graph.
        folder: where the weights file is that it names.
        op: the portable graph, which gets what it reads.
        half: give matrices in float16 instead of blocks.
    """

    def __init__(
        self, graph: onnx.GraphProto, folder: Path, op: GraphBuilder, *, half: bool
    ) -> None:
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._folder = folder
        self._op = op
        self._half = half
        self._made: dict[tuple[str, str], str] = {}

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of an initializer."""
        return tuple(self._tensors[name].dims)

    def array(self, name: str) -> NDArray[Any]:
        """The value of an initializer, mapped from its file where it is external."""
        tensor = self._tensors[name]
        if tensor.data_location != TensorProto.EXTERNAL:
            held: NDArray[Any] = numpy_helper.to_array(tensor)
            return held
        place = {entry.key: entry.value for entry in tensor.external_data}
        mapped: NDArray[Any] = np.memmap(
            self._folder / place["location"],
            dtype=helper.tensor_dtype_to_np_dtype(tensor.data_type),
            mode="r",
            offset=int(place.get("offset", 0)),
            shape=tuple(tensor.dims),
        )
        return mapped

    def plain(self, name: str) -> str:
        """An initializer that is no blocks: floats in the graph's precision."""
        tensor = self._tensors[name]
        external = tensor.data_location == TensorProto.EXTERNAL
        with self._op.root():
            if not self._half or tensor.data_type != TensorProto.FLOAT:
                return self.shared(name) if external else self._op.constant(name, self.array(name))
            return self._op.weight(name, self.array(name).astype(np.float16))

    def shared(self, name: str) -> str:
        """An external initializer as it is."""
        return self._op.share(self._tensors[name], self._tensors[name].data_type, self.shape(name))

    def matrix(self, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> str:
        """The (K, N) matrix of a MatMulNBits node, as a value of the portable graph."""
        values, scales, points = (*node.input, "", "")[1:4]
        blocks = self._blocks(values, scales, points, attributes)
        if self._half:
            return self._once(
                values,
                "half",
                lambda: self._op.weight(
                    f"{values}.half", np.ascontiguousarray(blocks.dequantize().T).astype(np.float16)
                ),
            )
        # The transposition is free where a provider folds it into its product.
        parts = self._stored(values, scales, points, blocks)
        rows = self._op.DequantizeLinear(*parts, axis=1, block_size=blocks.block_size)
        return self._op.Transpose(rows, perm=[1, 0])

    def rows(self, inputs: Sequence[str], ids: str, attributes: Mapping[str, Any]) -> str:
        """Rows of a GatherBlockQuantized table for ids (1, S): (1, S, K)."""
        values, _, scales, points = (*inputs, "")[:4]
        blocks = self._blocks(values, scales, points, attributes)
        if self._half:
            table = self._once(
                values,
                "rows",
                lambda: self._op.weight(f"{values}.half", blocks.dequantize().astype(np.float16)),
            )
            return self._op.Gather(table, ids, axis=0)
        if blocks.bits == 8:
            # As a matrix: OpenVINO dequantizes along the first two axes only.
            flat = self._op.Reshape(ids, self._op.constant("flat", np.array([-1], np.int64)))
            parts = [
                self._op.Gather(part, flat, axis=0)
                for part in self._stored(values, scales, points, blocks)
            ]
            gathered = self._op.DequantizeLinear(*parts, axis=1, block_size=blocks.block_size)
            return self._op.Unsqueeze(gathered, self._op.constant("batch", np.array([0], np.int64)))
        # Few providers gather 4-bit values: the table is dequantized first, and folded by those
        # that have the memory.
        parts = list(self._stored(values, scales, points, blocks))
        table = self._op.DequantizeLinear(*parts, axis=1, block_size=blocks.block_size)
        return self._op.Gather(table, ids, axis=0)

    def _blocks(
        self, values: str, scales: str, points: str, attributes: Mapping[str, Any]
    ) -> BlockQuantized:
        bits, size = attributes["bits"], attributes["block_size"]
        held = self.array(scales)
        packed = self.array(values).reshape(*held.shape, size * bits // 8)
        return BlockQuantized(bits, size, packed, held, self.array(points) if points else None)

    def _stored(
        self, values: str, scales: str, points: str, blocks: BlockQuantized
    ) -> tuple[str, str, str]:
        """Values, scales and zero points as DequantizeLinear reads them: (N, K), (N, K/b) twice."""
        kind = TensorProto.UINT8 if blocks.bits == 8 else TensorProto.UINT4
        return (
            self._once(values, "q", lambda: self._share(values, kind, blocks.shape)),
            self._once(
                scales, "s", lambda: self._share(scales, TensorProto.FLOAT, blocks.scales.shape)
            ),
            self._once(values, "z", lambda: self._points(values, points, kind, blocks)),
        )

    def _points(self, values: str, points: str, kind: int, blocks: BlockQuantized) -> str:
        shape = blocks.scales.shape
        padded = blocks.bits == 4 and shape[1] % 2  # rows of MatMulNBits end on whole bytes
        if points and not padded:
            return self._share(points, kind, shape)
        codes = blocks.block_zero_points().reshape(-1)
        if blocks.bits == 4:
            codes = np.append(codes, np.zeros(len(codes) % 2, np.uint8))
            codes = (codes[0::2] | (codes[1::2] << 4)).astype(np.uint8)
        return self._op.packed_weight(f"{values}.zero_points", codes, kind, shape)

    def _share(self, name: str, kind: int, shape: Sequence[int]) -> str:
        tensor = self._tensors[name]
        return self._op.share(tensor, kind, shape)

    def _once(self, name: str, use: str, make: Any) -> str:
        tensor = self._tensors[name]
        place = {entry.key: entry.value for entry in tensor.external_data}
        # A tied table has two names over one extent.
        key = (f"{place.get('offset', name)}", use)
        if key not in self._made:
            with self._op.root():
                self._made[key] = make()
        return self._made[key]
