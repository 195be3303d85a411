"""Is an opened graph the one that its manifest describes?

The graph contract of docs/architecture.md: what goes in and comes out, of which type and shape.
Asked before anything is bound to the graph, because bound is raw memory: a graph of more heads than
the manifest admits to would be given less of it. Knows names and shapes; runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from edge_runtime.engine.kv_cache import CacheGeometry
from edge_runtime.errors import ManifestError

_INT32, _INT64, _FLOAT = "tensor(int32)", "tensor(int64)", "tensor(float)"
_CACHE = {"float32": _FLOAT, "int8": "tensor(int8)"}

# A type as onnxruntime writes it, and a shape; None is a dimension that differs from step to step.
_Value = tuple[str, tuple[int | None, ...]]


def check_graph(session: Any, graph: Path, geometry: CacheGeometry, vocabulary_size: int) -> None:
    """Compare a graph's inputs and outputs with the contract.

    A dimension that the graph leaves open fits any.

    Args:
        session: an ``onnxruntime.InferenceSession``.
        graph: its file, for the message.
        geometry: of the cache that it is to extend.
        vocabulary_size: V of the logits.

    Raises:
        ManifestError: one is missing, too many, or of another type or shape.
    """
    row = (_CACHE[geometry.cache_type], (None, geometry.kv_heads, None, geometry.head_size))
    cache = [f"{layer}.{part}" for layer in range(geometry.layers) for part in ("key", "value")]
    inputs: dict[str, _Value] = {
        "input_ids": (_INT64, (None, None)),
        "seqlens_k": (_INT32, (None,)),
        "total_sequence_length": (_INT32, ()),
        "logits_indices": (_INT64, (None, None)),
        **{f"past_key_values.{name}": row for name in cache},
    }
    outputs: dict[str, _Value] = {
        "logits": (_FLOAT, (None, None, vocabulary_size)),
        **{f"present.{name}": row for name in cache},
    }
    _compare(graph, "input", session.get_inputs(), inputs)
    _compare(graph, "output", session.get_outputs(), outputs)


def _compare(graph: Path, what: str, found: Iterable[Any], wanted: Mapping[str, _Value]) -> None:
    held = {value.name: (value.type, tuple(value.shape)) for value in found}
    for name in (*wanted, *held):
        if name not in held:
            raise _wrong(graph, f"it has no {what} {name}")
        if name not in wanted:
            raise _wrong(graph, f"it has an {what} {name}, which nobody knows")
        (kind, shape), (wanted_kind, wanted_shape) = held[name], wanted[name]
        if kind != wanted_kind or not _fits(shape, wanted_shape):
            raise _wrong(
                graph,
                f"its {what} {name} is {_shown(kind, shape)}, "
                f"not {_shown(wanted_kind, wanted_shape)}",
            )


def _fits(shape: tuple[object, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(shape) == len(wanted) and all(
        size == fixed or fixed is None or not isinstance(size, int)
        for size, fixed in zip(shape, wanted, strict=True)
    )


def _shown(kind: str, shape: tuple[object, ...]) -> str:
    return f"{kind}[{', '.join('?' if size is None else str(size) for size in shape)}]"


def _wrong(graph: Path, how: str) -> ManifestError:
    return ManifestError(
        f"{graph} is not the graph that the manifest describes: {how}", hint="export it again"
    )
