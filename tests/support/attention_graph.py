"""A decoder that is one attention and nothing else, in the graph contract of the runtime.

Each token has a query, a key and a value of its own, and the logits are what the attention gives,
so that its inputs are known and its outputs are seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edge_runtime.bundle import CacheType, ModelDimensions
from edge_runtime.engine.kv_cache import CacheGeometry, KVCache
from edge_runtime.engine.model_runner import OrtModelRunner, StepInput
from edge_runtime.providers.session import SessionOptions
from edge_runtime.providers.threads import plan_threads

HEADS, KV_HEADS, HEAD_SIZE, CAPACITY, VOCABULARY = 4, 2, 16, 64, 50
WIDTH = HEADS * HEAD_SIZE
DIMENSIONS = ModelDimensions(1, HEADS, KV_HEADS, HEAD_SIZE, WIDTH, WIDTH, CAPACITY)


def tables(seed: int = 0) -> NDArray[np.float32]:
    """Query, key and value of each token side by side; channels differ in size."""
    rng = np.random.default_rng(seed)
    columns = WIDTH + 2 * KV_HEADS * HEAD_SIZE
    spread = np.exp(rng.standard_normal(columns))
    values: NDArray[np.float32] = (rng.standard_normal((VOCABULARY, columns)) * spread).astype("f4")
    return values


def attention_graph(
    table: NDArray[np.float32],
    *,
    packed: bool = True,
    rotary: bool = True,
    **attributes: int | float,
) -> onnx.ModelProto:
    """The graph over a float32 cache."""
    bounds = [0, WIDTH, WIDTH + KV_HEADS * HEAD_SIZE, table.shape[1]]
    parts = {"query": table} if packed else {
        name: table[:, start:stop]
        for name, start, stop in zip(
            ("query", "key", "value"), bounds[:-1], bounds[1:], strict=True
        )
    }  # fmt: skip
    angles = np.outer(np.arange(CAPACITY), 100.0 ** -np.linspace(0, 1, HEAD_SIZE // 2))
    constants = {f"table.{name}": array for name, array in parts.items()}
    constants |= {"cos": np.cos(angles).astype("f4"), "sin": np.sin(angles).astype("f4")}
    constants |= {"last": np.array([-1])}
    given = [name if name in parts else "" for name in ("query", "key", "value")]
    cache = ["past_key_values.0.key", "past_key_values.0.value"]
    lengths = ["seqlens_k", "total_sequence_length"]
    nodes = [
        *(helper.make_node("Gather", [f"table.{n}", "input_ids"], [n], name=n) for n in parts),
        helper.make_node(
            "GroupQueryAttention",
            [*given, *cache, *lengths, *(["cos", "sin"] if rotary else [])],
            ["attended", "present.0.key", "present.0.value"],
            name="attention",
            domain="com.microsoft",
            num_heads=HEADS,
            kv_num_heads=KV_HEADS,
            do_rotary=int(rotary),
            **attributes,
        ),
        helper.make_node("Unsqueeze", ["logits_indices", "last"], ["wanted"], name="wanted"),
        helper.make_node("GatherND", ["attended", "wanted"], ["logits"], name="pick", batch_dims=1),
    ]
    row = ["B", KV_HEADS, "C", HEAD_SIZE]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "attention",
        [
            value("input_ids", TensorProto.INT64, ["B", "S"]),
            value("seqlens_k", TensorProto.INT32, ["B"]),
            value("total_sequence_length", TensorProto.INT32, []),
            value("logits_indices", TensorProto.INT64, ["B", "N"]),
            *(value(name, TensorProto.FLOAT, row) for name in cache),
        ],
        [
            value("logits", TensorProto.FLOAT, ["B", "N", WIDTH]),
            value("present.0.key", TensorProto.FLOAT, row),
            value("present.0.value", TensorProto.FLOAT, row),
        ],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


class OpenedAttention:
    """A graph in a session, over three slots."""

    def __init__(self, model: onnx.ModelProto, folder: Path, cache_type: CacheType) -> None:
        path = folder / f"{cache_type}.onnx"
        onnx.save_model(model, str(path))
        geometry = CacheGeometry.of(DIMENSIONS, slots=3, capacity=CAPACITY, cache_type=cache_type)
        self.cache = KVCache(geometry)
        self._runner = OrtModelRunner(
            path,
            self.cache,
            vocabulary_size=WIDTH,
            options=SessionOptions(plan_threads(1)),
        )

    def run(
        self, rows: Sequence[Sequence[int]], *, held: int = 0, first_slot: int = 0
    ) -> list[NDArray[np.float32]]:
        """What each new token attends to, (tokens, WIDTH) for each row; rows are padded right."""
        width = max(map(len, rows))
        ids = np.array([[*row, *[0] * (width - len(row))] for row in rows], np.int64)
        step = StepInput(
            first_slot=first_slot,
            token_ids=ids,
            held=np.full(len(rows), held, np.int32),
            lengths=np.array([len(row) for row in rows], np.int32),
            logits_indices=np.broadcast_to(np.arange(width), ids.shape).astype(np.int64),
        )
        logits = self._runner.run(step).copy()
        return [logits[i, : len(row)] for i, row in enumerate(rows)]
