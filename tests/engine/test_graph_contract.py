"""A graph that is not what its manifest says is refused before memory is bound to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edge_runtime.engine.graph_contract import check_graph
from edge_runtime.engine.kv_cache import CacheGeometry
from edge_runtime.errors import ManifestError

Values = dict[str, tuple[str, list[Any]]]
LAYERS, KV_HEADS, HEAD_SIZE, VOCABULARY = 2, 3, 8, 100
ROW: tuple[str, list[Any]] = ("tensor(float)", ["B", KV_HEADS, "C", HEAD_SIZE])


class Session:
    """The part of an InferenceSession that is asked."""

    def __init__(self) -> None:
        cache = [f"{layer}.{part}" for layer in range(LAYERS) for part in ("key", "value")]
        self.inputs: Values = {
            "input_ids": ("tensor(int64)", ["B", "S"]),
            "seqlens_k": ("tensor(int32)", ["B"]),
            "total_sequence_length": ("tensor(int32)", []),
            "logits_indices": ("tensor(int64)", ["B", "N"]),
            **{f"past_key_values.{name}": ROW for name in cache},
        }
        self.outputs: Values = {
            "logits": ("tensor(float)", ["B", "N", VOCABULARY]),
            **{f"present.{name}": ROW for name in cache},
        }

    def get_inputs(self) -> list[Any]:
        return [SimpleNamespace(name=n, type=t, shape=s) for n, (t, s) in self.inputs.items()]

    def get_outputs(self) -> list[Any]:
        return [SimpleNamespace(name=n, type=t, shape=s) for n, (t, s) in self.outputs.items()]


def check(session: Session) -> None:
    geometry = CacheGeometry(LAYERS, 1, KV_HEADS, 64, HEAD_SIZE)
    check_graph(session, Path("decoder.onnx"), geometry, VOCABULARY)


def test_the_graph_of_the_contract_is_taken_and_open_dimensions_fit() -> None:
    session = Session()
    check(session)
    session.inputs["past_key_values.0.key"] = ("tensor(float)", [None, "H", "C", "D"])
    session.outputs["logits"] = ("tensor(float)", ["B", "N", None])
    check(session)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.inputs.pop("seqlens_k"), "it has no input seqlens_k"),
        (lambda s: s.inputs.pop("past_key_values.1.value"), "no input past_key_values.1.value"),
        (lambda s: s.inputs.update({"past_key_values.2.key": ROW}), "which nobody knows"),
        (lambda s: s.outputs.pop("present.0.key"), "it has no output present.0.key"),
        (
            lambda s: s.inputs.update(input_ids=("tensor(int32)", ["B", "S"])),
            r"input_ids is tensor\(int32\)\[B, S\], not tensor\(int64\)\[\?, \?\]",
        ),
        (
            lambda s: s.outputs.update(logits=("tensor(float)", ["B", "N", 101])),
            r"logits is .*101\], not .*100\]",
        ),
        (
            lambda s: s.inputs.update(
                {"past_key_values.1.key": ("tensor(float)", ["B", 9, "C", 8])}
            ),
            "past_key_values.1.key is",
        ),
        (
            lambda s: s.inputs.update(seqlens_k=("tensor(int32)", ["B", 1])),
            "seqlens_k is",
        ),
    ],
)
def test_any_other_graph_is_refused(change: Callable[[Session], object], words: str) -> None:
    session = Session()
    change(session)
    with pytest.raises(ManifestError, match=words):
        check(session)
