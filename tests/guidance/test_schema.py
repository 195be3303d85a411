from __future__ import annotations

import re
from typing import Any

import pytest

from edge_runtime.errors import GrammarError
from edge_runtime.guidance import schema as bounds
from edge_runtime.guidance.schema import checked_schema


def _chain(length: int) -> dict[str, Any]:
    steps = {
        f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(length)
    }
    return {"$defs": {**steps, f"d{length}": {"type": "null"}}, "$ref": "#/$defs/d0"}


def _nested(depth: int) -> Any:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def _properties(count: int) -> dict[str, Any]:
    return {"properties": {f"p{i}": {} for i in range(count)}}


@pytest.mark.parametrize(
    "schema, named",
    [
        ([], "list"),
        (False, "bool"),
        ("x", "str"),
        (_nested(100_000), "deeper"),
        (_chain(1500), "references"),
        ({"$ref": "#/missing"}, "missing"),
        ({"$ref": "https://example.org/schema"}, "nothing is fetched"),
        (_properties(bounds.MAX_PROPERTIES + 1), "properties"),
        ({"items": [_properties(300) for _ in range(3)]}, "optional properties"),
        ({"enum": ["x" * bounds.MAX_CHARACTERS]}, "characters"),
        ({"anyOf": [{"const": i} for i in range(bounds.MAX_ALTERNATIVES + 1)]}, "alternatives"),
        ({"multipleOf": 99_991}, "multipleOf"),
        ({"minProperties": 2}, "minProperties"),
        ({"properties": {"a": {"contentEncoding": "base64"}}}, "contentEncoding"),
        ({"const": "\x01"}, "control character"),
        ({"enum": ["\ud800"]}, "surrogate"),
        ({"properties": {"\x00": {}}}, "control character"),
    ],
)
def test_what_is_too_large_or_cannot_be_kept_is_refused(schema: object, named: str):
    with pytest.raises(GrammarError, match=named):
        checked_schema(schema)


def test_rings_of_references_and_ordinary_sizes_pass():
    checked_schema({"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"})
    checked_schema(_chain(30))
    checked_schema(_properties(bounds.MAX_PROPERTIES))
    checked_schema({"required": ["a", "b"], "minProperties": 2, "const": "back\\u0041"})


def test_a_property_that_is_called_like_a_keyword_is_no_keyword():
    schema = {"properties": {"contentEncoding": {"type": "string"}, "format": {"const": "date"}}}
    assert checked_schema(schema) == schema


@pytest.mark.parametrize(
    "form, valid, invalid",
    [
        ("date", ["2024-02-28", "1999-12-31"], ["2024-02-30", "2024-04-31", "2024-13-01"]),
        ("time", ["23:59:59Z", "00:00:00.5+01:30"], ["24:00:00Z", "23:59:60Z", "10:00"]),
        ("date-time", ["2024-01-31T10:11:12Z"], ["2024-01-32T10:11:12Z", "2024-01-31 10:11:12Z"]),
    ],
)
def test_dates_and_times_become_patterns_of_those_that_exist(
    form: str, valid: list[str], invalid: list[str]
):
    rewritten = checked_schema({"items": {"format": form, "type": "string"}})["items"]
    assert "format" not in rewritten
    for text in valid:
        assert re.search(rewritten["pattern"], text), text
    for text in invalid:
        assert not re.search(rewritten["pattern"], text), text


def test_a_date_with_a_pattern_of_its_own_keeps_both():
    rewritten = checked_schema({"format": "date", "pattern": "^2024"})
    assert rewritten["pattern"] == "^2024"
    assert len(rewritten["allOf"]) == 1
