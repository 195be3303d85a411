"""Which files an ONNX graph reads its weights from, told without opening it.

A bundle may come from anyone, and onnxruntime before 1.24 or so follows a location wherever it
points. So the locations are read out of the graph first. The wire format is that of Protocol
Buffers, the field numbers are those of onnx.proto. Knows no manifest and no session.
"""

from __future__ import annotations

from collections.abc import Iterator

from edge_runtime.errors import ProviderError

# Field number -> message inside, for each message on the way to a tensor's external_data.
_INSIDE: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
_KEY = b"location"
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5


def external_locations(model: bytes) -> set[str]:
    """The locations that any tensor of a model names, at any depth.

    Args:
        model: a serialized ModelProto.

    Raises:
        ProviderError: it is not one.
    """
    found: set[str] = set()
    pending = [("model", 0, len(model))]
    while pending:
        kind, start, end = pending.pop()
        if kind == "entry":
            found |= _locations_of(model, start, end)
            continue
        inside = _INSIDE[kind]
        for number, at, stop in byte_fields(model, start, end):
            # What names a location holds the word: most nodes are passed over without a look.
            if number in inside and model.find(_KEY, at, stop) >= 0:
                pending.append((inside[number], at, stop))
    return found


def _locations_of(model: bytes, start: int, end: int) -> set[str]:
    keys: set[bytes] = set()
    values: set[str] = set()
    for number, at, stop in byte_fields(model, start, end):
        if number == _ENTRY_KEY:
            keys.add(model[at:stop])
        elif number == _ENTRY_VALUE:
            values.add(model[at:stop].decode("utf-8", "replace"))
    return values if _KEY in keys else set()


def byte_fields(model: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of every field of a message that holds bytes."""
    while at < end:
        tag, at = (model[at], at + 1) if model[at] < 0x80 else _varint(model, at, end)
        wire = tag & 7
        if wire == _BYTES:
            if at < end and model[at] < 0x80:  # nearly always: spares a call
                length, at = model[at], at + 1
            else:
                length, at = _varint(model, at, end)
            if length > end - at:
                raise _malformed()
            yield tag >> 3, at, at + length
            at += length
        elif wire == _VARINT:
            _, at = _varint(model, at, end)
        elif wire in (_FIXED_32, _FIXED_64):
            at += 4 if wire == _FIXED_32 else 8
        else:  # groups: no onnx message has them
            raise _malformed()


def _varint(model: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = model[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise _malformed()


def _malformed() -> ProviderError:
    return ProviderError("the graph is not an ONNX model", hint="export or copy the bundle again")
