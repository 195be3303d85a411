"""Reads typed fields out of a JSON object, with the path and the value of whatever is wrong.

Null says the same as a field that is not there. Knows no field by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edge_runtime.api.openai_error import RequestRefusedError

Kind = type | tuple[type, ...]

_KIND_NAMES = {
    str: "a string", int: "a whole number", bool: "true or false", list: "a list",
    dict: "an object",
}  # fmt: skip


def optional(fields: Mapping[str, Any], name: str, kind: Kind) -> Any:
    """A field's value, or None where it says nothing.

    Raises:
        RequestRefusedError: it is of another type.
    """
    value = fields.get(name)
    if value is not None and not is_a(value, kind):
        raise wrong_type(name, value, _names_of(kind))
    return value


def required(fields: Mapping[str, Any], name: str, kind: Kind, *, within: str = "") -> Any:
    """A field's value.

    Args:
        fields: the object.
        name: the field.
        kind: its type, or types.
        within: the path of the object, as in ``messages[0]``.

    Raises:
        RequestRefusedError: it is missing, or of another type.
    """
    where = f"{within}.{name}" if within else name
    value = fields.get(name)
    if value is None:
        raise RequestRefusedError(
            f"{where} is missing", param=where, code="missing_required_parameter"
        )
    if not is_a(value, kind):
        raise wrong_type(where, value, _names_of(kind))
    return value


def is_a(value: object, kind: Kind) -> bool:
    """As isinstance, but true and false are no numbers."""
    return isinstance(value, kind) and (not isinstance(value, bool) or kind is bool)


def wrong_type(where: str, value: object, expected: str) -> RequestRefusedError:
    """The error for a value of another type than a field's."""
    message = f"{where} is {shown(value)}; it must be {expected}"
    return RequestRefusedError(message, param=where, code="invalid_type")


def shown(value: object) -> str:
    """The value, short enough for one line."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _names_of(kind: Kind) -> str:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return " or ".join(_KIND_NAMES[one] for one in kinds)
