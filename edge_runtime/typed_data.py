"""Read plain JSON or TOML data into frozen dataclasses, with the path of whatever is wrong.

Supports what manifests, catalogs and profiles need: str, int, float, bool, Optional, tuples of one
kind, mappings from str, nested dataclasses. Knows no file and no schema of its own.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class DataError(ValueError):
    """The data does not have the shape of the type; the message says where and what was found."""


def decode(kind: type[T], data: object, *, where: str = "") -> T:
    """Build ``kind`` (a dataclass or a supported field type) from plain data.

    Unknown keys are ignored, so that a newer writer's file opens where its meaning is unchanged.

    Args:
        kind: the type to build.
        data: what ``json.load`` or ``tomllib.load`` gave.
        where: path of ``data`` in its file, for the error message.

    Raises:
        DataError: a missing key, or a value of the wrong type.
    """
    return typing.cast(T, _decode(kind, data, where))


def encode(value: Any) -> Any:
    """The plain data of a dataclass tree; None fields are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
        return {name: encode(item) for name, item in pairs if item is not None}
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    return value


def _decode(kind: Any, data: object, where: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if data is None and type(None) in arguments:
            return None
        return _decode(next(a for a in arguments if a is not type(None)), data, where)
    if origin is tuple:
        if not isinstance(data, list):
            raise _wrong(where, "a list", data)
        return tuple(_decode(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(data))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(data, dict):
            raise _wrong(where, "a table", data)
        return {str(k): _decode(arguments[1], v, f"{where}.{k}") for k, v in data.items()}
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, data, where)
    if not isinstance(kind, type):
        return data
    if kind is int and isinstance(data, bool):  # to Python a bool is an int as well
        raise _wrong(where, "int", data)
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        try:
            return float(data)
        except OverflowError as exc:
            raise _wrong(where, "float", data) from exc
    if not isinstance(data, kind):
        raise _wrong(where, kind.__name__, data)
    return data


def _decode_dataclass(kind: Any, data: object, where: str) -> Any:
    if not isinstance(data, dict):
        raise _wrong(where, "a table", data)
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        path = f"{where}.{field.name}" if where else field.name
        if field.name in data:
            values[field.name] = _decode(hints[field.name], data[field.name], path)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise DataError(f"{path} is missing")
    return kind(**values)


def _wrong(where: str, expected: str, found: object) -> DataError:
    shown = repr(found)
    if len(shown) > 60:
        shown = shown[:57] + "..."
    return DataError(f"{where or 'the data'} should be {expected}, found {shown}")
