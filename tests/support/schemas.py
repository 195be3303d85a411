"""Two hundred JSON schemas across the kinds that callers send, each the same on every run."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
PER_KIND = 25


def _object(properties: dict[str, Any], required: list[str] | None = None) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


def _enums(i: int) -> Schema:
    words = [
        "red",
        "green",
        'say "hi"',
        "back\\slash",
        "naïve",
        "日本",
        "",
        "a b",
        "tab\tbed",
        "x" * 40,
    ]
    values: list[Any] = words[: 2 + i % 9]
    if i % 3 == 0:
        values = [*values, i, -1.5, None, True, {"k": [i]}, [1, "two"]]
    if i % 5 == 4:
        return {"const": values[-1]}
    return _object({"choice": {"enum": values}}) if i % 2 else {"enum": values}


def _arrays(i: int) -> Schema:
    items: Schema = [{"type": "integer", "minimum": 0, "maximum": 99}, {"type": "boolean"},
                     {"enum": ["a", "b"]}, {"type": "null"}][i % 4]  # fmt: skip
    for depth in range(1 + i % 3):
        items = {"type": "array", "items": items, "minItems": (i + depth) % 3, "maxItems": 3}
    if i % 5 == 0:
        return {"type": "array", "prefixItems": [{"type": "string", "maxLength": 5}, items],
                "items": False, "minItems": 2}  # fmt: skip
    return _object({"rows": items, "count": {"type": "integer", "minimum": 0, "maximum": 9}})


_PATTERNS = (
    "^[a-z]{3,8}$", "^[A-Z]{2}-[0-9]{4}$", "^(yes|no|maybe)$", "^#[0-9a-f]{6}$", r"^\d{3}-\d{4}$",
    r"^\+?[1-9][0-9]{1,14}$", "^[a-z]+@[a-z]+\\.(com|org)$", "^(a|b)*c$", "^v[0-9]+(\\.[0-9]+){2}$",
    "foo", "^x", "y$", "^[^a-z]{1,5}$", "^(?:ab){1,3}$", "^\\w{1,10}$", "^[\\u00e0-\\u00ff]{2,4}$",
    "^.{0,12}$", "^(0|[1-9][0-9]{0,3})$", "^[01]{8}$", "^\\[[a-z]\\]$", '^"[a-z]{1,3}"$',
    "^[A-Za-z][A-Za-z0-9_]{0,15}$", "^(Mon|Tue|Wed) [0-2]?[0-9]:[0-5][0-9]$", "^a?b?c?d?$",
    "^/[a-z]{1,6}(/[a-z]{1,6}){0,2}$",
)  # fmt: skip


def _patterns(i: int) -> Schema:
    text: Schema = {"type": "string", "pattern": _PATTERNS[i]}
    if i in (9, 10, 11):
        text["maxLength"] = 20
    return _object({"code": text}) if i % 2 else text


def _numbers(i: int) -> Schema:
    kinds: list[Schema] = [
        {"type": "integer", "minimum": i, "maximum": i + 7 * (i + 1)},
        {"type": "integer", "exclusiveMinimum": -100 - i, "exclusiveMaximum": -i},
        {"type": "number", "minimum": -1.5 * i, "maximum": 0.25 * (i + 1)},
        {"type": "integer", "multipleOf": i + 2, "minimum": 0, "maximum": 1000},
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"type": "integer", "minimum": -(10 ** (i % 12)), "maximum": 10 ** (i % 15)},
    ]
    return _object({"n": kinds[i % 6], "unit": {"enum": ["m", "s"]}}) if i % 2 else kinds[i % 6]


def _alternatives(i: int) -> Schema:
    short: Schema = {"type": "string", "maxLength": 10}
    count: Schema = {"type": "integer", "minimum": 0, "maximum": 50}
    circle = _object({"kind": {"const": "circle"}, "radius": count})
    square = _object({"kind": {"const": "square"}, "side": count, "name": short})
    kinds: list[Schema] = [
        {"anyOf": [short, count, {"type": "null"}]},
        {"anyOf": [circle, square]},
        {"oneOf": [circle, square]},
        {"type": ["integer", "null", "boolean"], "minimum": i, "maximum": 2 * i},
        {"type": "array", "items": {"anyOf": [circle, square]}, "minItems": 1, "maxItems": 2},
    ]
    return _object({"id": count, "value": kinds[i % 5]}) if i % 2 else kinds[i % 5]


def _recursive(i: int) -> Schema:
    leaf: Schema = [{"type": "integer", "minimum": 0, "maximum": 9}, {"enum": ["a", "b"]},
                    {"type": "boolean"}][i % 3]  # fmt: skip
    reference = {"$ref": "#/$defs/node"}
    nodes: list[Schema] = [
        _object({"value": leaf, "next": {"anyOf": [reference, {"type": "null"}]}}),
        _object({"value": leaf, "children": {"type": "array", "items": reference, "maxItems": 2}}),
        {"anyOf": [leaf, {"type": "array", "items": reference, "minItems": 1, "maxItems": 2}]},
        _object({"value": leaf, "left": reference, "right": reference}, ["value"]),
        _object({"op": {"enum": ["+", "-"]}, "args": {"type": "array", "maxItems": 2,
                 "items": {"anyOf": [leaf, reference]}}}),
    ]  # fmt: skip
    return {"$defs": {"node": nodes[i % 5]}, **_object({"root": reference})}


_FORMATS = ("date", "time", "date-time", "email", "ipv4", "ipv6", "uuid", "hostname", "duration")


def _formats(i: int) -> Schema:
    text = {"type": "string", "format": _FORMATS[i % len(_FORMATS)]}
    if i % 3 == 0:
        return text
    if i % 3 == 1:
        return _object({"when": text, "note": {"type": "string", "maxLength": 12}})
    return {"type": "array", "items": text, "minItems": 1, "maxItems": 2}


def _objects(i: int) -> Schema:
    short: Schema = {"type": "string", "minLength": 1, "maxLength": 8}
    count: Schema = {"type": "integer", "minimum": 0, "maximum": 20}
    kinds: list[Schema] = [
        _object({"name": short, "age": count, "tags": {"type": "array", "items": short,
                 "maxItems": 2}}, ["name"]),
        {"type": "object", "additionalProperties": count, "maxProperties": 3},
        {"type": "object", "patternProperties": {"^k[0-9]$": count},
         "additionalProperties": False, "minProperties": 1, "maxProperties": 2},
        {"allOf": [{"type": "object", "properties": {"a": short}, "required": ["a"]},
                   {"properties": {"b": count}, "required": ["b"]}],
         "properties": {"c": {"type": "null"}}, "maxProperties": 3, "required": ["a", "b", "c"]},
        {"$defs": {"part": _object({"x": count, "y": count})},
         **_object({"from": {"$ref": "#/$defs/part"}, "to": {"$ref": "#/$defs/part"}})},
    ]  # fmt: skip
    if i % 5 == 0:
        kinds[0]["properties"][f"extra{i}"] = {"type": "boolean"}
    return kinds[i % 5]


KINDS = {
    "enums": _enums, "arrays": _arrays, "patterns": _patterns, "numbers": _numbers,
    "alternatives": _alternatives, "recursive": _recursive, "formats": _formats,
    "objects": _objects,
}  # fmt: skip


def schemas() -> list[tuple[str, Schema]]:
    """Each with the name of its kind and its number in it."""
    return [(f"{name}-{i}", make(i)) for name, make in KINDS.items() for i in range(PER_KIND)]
