from __future__ import annotations

import random
from contextlib import suppress

import pytest

from edge_runtime.errors import ProviderError
from edge_runtime.providers.external_data import external_locations

onnx = pytest.importorskip("onnx")


def tensor(location: str | None) -> onnx.TensorProto:
    made = onnx.TensorProto(name="w", data_type=1, dims=[300])
    if location is None:
        made.raw_data = b"location" * 150
        return made
    made.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("offset", "location"), ("location", location), ("length", "1200")):
        made.external_data.add(key=key, value=value)
    return made


def graph(*tensors: onnx.TensorProto) -> onnx.GraphProto:
    return onnx.helper.make_graph([], "g", [], [], list(tensors))


def test_each_location_is_found_once_and_nothing_else() -> None:
    model = onnx.helper.make_model(graph(tensor("a"), tensor("b"), tensor("a"), tensor(None)))
    assert external_locations(model.SerializeToString()) == {"a", "b"}


def test_a_model_without_external_data_has_none() -> None:
    assert external_locations(b"") == set()
    model = onnx.helper.make_model(graph(tensor(None)))
    assert external_locations(model.SerializeToString()) == set()


def test_tensors_hidden_in_nodes_branches_functions_and_training_are_found() -> None:
    node = onnx.helper.make_node
    inner = graph(tensor("in a branch"))
    inner.node.append(node("Constant", [], ["c"], value=tensor("in a branch's constant")))
    sparse = onnx.SparseTensorProto(values=tensor("values"), indices=tensor("indices"), dims=[9])
    outer = graph()
    outer.sparse_initializer.append(sparse)
    outer.node.append(node("Constant", [], ["c"], sparse_value=sparse))
    outer.node.append(node("If", ["x"], ["y"], then_branch=inner, else_branch=graph()))
    outer.node.append(node("Custom", [], ["z"], tensors=[tensor("in a list")]))
    outer.node.append(node("Custom", [], ["q"], graphs=[graph(tensor("in a list of graphs"))]))
    model = onnx.helper.make_model(outer)
    function = model.functions.add(name="f", domain="d")
    function.node.append(node("Constant", [], ["c"], value=tensor("in a function")))
    default = onnx.helper.make_attribute("a", tensor("in a default"))
    function.attribute_proto.append(default)
    model.training_info.add().algorithm.CopyFrom(graph(tensor("in training")))
    assert external_locations(model.SerializeToString()) == {
        "in a branch", "in a branch's constant", "values", "indices", "in a list",
        "in a list of graphs", "in a function", "in a default", "in training",
    }  # fmt: skip


def test_every_value_of_an_entry_counts_whichever_a_reader_takes() -> None:
    """Protocol Buffers allow a field twice, in any order, and lengths of more bytes than needed."""
    entry = b"\x12\x86\x80\x00hidden" + b"\x0a\x08location" + b"\x12\x05shown"
    made = b"\x6a" + bytes([len(entry)]) + entry
    initializer = b"\x2a" + bytes([len(made)]) + made
    model = b"\x3a" + bytes([len(initializer)]) + initializer
    assert external_locations(model) == {"hidden", "shown"}


@pytest.mark.parametrize(
    "data",
    [
        b"\x3a",  # a field without its length
        b"\x3a\x05ab",  # longer than what is left
        b"\x3a" + b"\xff" * 11,  # a length that does not end
        b"\x3b",  # a group
        b"no graph",
    ],
)
def test_what_is_no_model_is_refused(data: bytes) -> None:
    with pytest.raises(ProviderError, match="not an ONNX model"):
        external_locations(data)


def test_damage_anywhere_is_an_error_of_ours_or_none() -> None:
    model = onnx.helper.make_model(graph(tensor("a"), tensor("b"))).SerializeToString()
    rng = random.Random(0)
    for _ in range(500):
        damaged = bytearray(model)
        damaged[rng.randrange(len(model))] = rng.randrange(256)
        with suppress(ProviderError):
            external_locations(bytes(damaged[: rng.randrange(len(model) + 1)]))
