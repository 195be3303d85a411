"""Which provider each node of an opened graph went to, and whether the one asked for does the work.

A provider that starts and takes three nodes of three hundred is slower than none. onnxruntime 1.24
and later tell the assignment; of an older one a run is profiled. Knows nodes; chooses nothing.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_runtime.errors import ProviderError
from edge_runtime.providers.external_data import byte_fields
from edge_runtime.providers.ort import first_line

RECORD_ENTRY = "session.record_ep_graph_assignment_info"

# The operators that a decoder's time goes to.
_HEAVY = frozenset(
    {
        "Attention", "Conv", "Einsum", "FusedMatMul", "Gemm", "GroupQueryAttention", "MatMul",
        "MatMulInteger", "MatMulNBits", "MultiHeadAttention", "QLinearMatMul",
    }
)  # fmt: skip
# A provider that does less than half of them hands arrays over at every layer.
_LEAST_SHARE = 0.5

_GRAPH_FIELD, _NODE_FIELD, _OP_TYPE_FIELD = 7, 1, 4  # of onnx.proto
_DTYPES = {
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
}


@dataclass(frozen=True)
class Assignment:
    """How much of a graph one provider took.

    Args:
        provider: onnxruntime's name.
        nodes: of the graph, those that went to it; after onnxruntime's own optimizing.
        total: all of them.
        heavy: of its nodes, the matrix products and attentions.
        heavy_total: all of those.
        elsewhere: what it left, by operator, most first.
        told_by: ``assignment`` or ``profile``.
    """

    provider: str
    nodes: int
    total: int
    heavy: int
    heavy_total: int
    elsewhere: tuple[tuple[str, int], ...]
    told_by: str

    @property
    def does_the_work(self) -> bool:
        """Whether most matrix products and attentions are its own."""
        if self.heavy_total:
            return self.heavy >= _LEAST_SHARE * self.heavy_total
        return self.nodes > 0

    def __str__(self) -> str:
        return (
            f"{self.nodes} of {self.total} nodes, "
            f"{self.heavy} of {self.heavy_total} matrix products and attentions"
        )


def tells_assignment(ort: Any) -> bool:
    """Whether this onnxruntime can say where nodes went."""
    return hasattr(ort.InferenceSession, "get_provider_graph_assignment_info")


def told_assignment(session: Any, provider: str) -> Assignment:
    """What a session says that was opened with :data:`RECORD_ENTRY` set to 1."""
    taken: Counter[str] = Counter()
    left: Counter[str] = Counter()
    for subgraph in session.get_provider_graph_assignment_info():
        counts = taken if subgraph.ep_name == provider else left
        counts.update(node.op_type for node in subgraph.get_nodes())
    return _assignment(provider, taken, left, "assignment")


def profiled_assignment(session: Any, provider: str, graph: Path) -> Assignment:
    """Run the smallest step of a session opened for profiling, and read where its nodes ran.

    A provider that compiles reports one node for many, so what it took is what the graph holds
    less what ran elsewhere.

    Raises:
        ProviderError: the step does not run.
    """
    try:
        session.run(None, smallest_feeds(session))
    except Exception as exc:  # onnxruntime raises many kinds that share no base
        raise ProviderError(f"{provider} started and failed in a step: {first_line(exc)}") from exc
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    left = Counter(name for name, where in _ran(events) if where != provider)
    held = operators(graph.read_bytes())
    return _assignment(provider, held - left, left & held, "profile")


def profile_prefix() -> tuple[tempfile.TemporaryDirectory[str], str]:
    """A folder for a profile, to be removed by the caller, and the prefix of its file."""
    folder = tempfile.TemporaryDirectory(prefix="edge-runtime-")
    return folder, str(Path(folder.name) / "profile")


def operators(model: bytes) -> Counter[str]:
    """How often the main graph of a serialized ModelProto has each operator.

    Raises:
        ProviderError: it is no ModelProto.
    """
    found: Counter[str] = Counter()
    for number, start, end in byte_fields(model, 0, len(model)):
        if number != _GRAPH_FIELD:
            continue
        for inner, at, stop in byte_fields(model, start, end):
            if inner == _NODE_FIELD:
                found.update(
                    model[a:b].decode("utf-8", "replace")
                    for field, a, b in byte_fields(model, at, stop)
                    if field == _OP_TYPE_FIELD
                )
    return found


def smallest_feeds(session: Any) -> dict[str, NDArray[Any]]:
    """Zeros for every input, open dimensions 1: one token after none, in the graphs of a bundle."""
    feeds: dict[str, NDArray[Any]] = {}
    for value in session.get_inputs():
        shape = [size if isinstance(size, int) else 1 for size in value.shape]
        feeds[value.name] = np.zeros(shape, _DTYPES[value.type])
    if "total_sequence_length" in feeds:
        feeds["total_sequence_length"] += 1
    return feeds


def _ran(events: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    seen = set()
    for event in events:
        arguments = event.get("args", {})
        if event.get("cat") == "Node" and "provider" in arguments:
            # A kernel of one node may report several times: before, during and after.
            key = (arguments.get("node_index"), arguments.get("op_name"), event.get("name"))
            if key not in seen:
                seen.add(key)
                yield str(arguments.get("op_name")), str(arguments["provider"])


def _assignment(provider: str, taken: Counter[str], left: Counter[str], told_by: str) -> Assignment:
    heavy = sum(count for name, count in taken.items() if name in _HEAVY)
    heavy_left = sum(count for name, count in left.items() if name in _HEAVY)
    return Assignment(
        provider=provider,
        nodes=sum(taken.values()),
        total=sum(taken.values()) + sum(left.values()),
        heavy=heavy,
        heavy_total=heavy + heavy_left,
        elsewhere=tuple(left.most_common()),
        told_by=told_by,
    )
