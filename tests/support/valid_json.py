"""Whether a text is an instance of a schema, by a judge of its own: the jsonschema package."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest


def assert_instance(text: str, schema: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    checker = jsonschema.FormatChecker()
    for name, parse in (
        ("date", datetime.date.fromisoformat),
        ("time", lambda value: datetime.time.fromisoformat(value.replace("Z", "+00:00"))),
        ("date-time", lambda value: datetime.datetime.fromisoformat(value.replace("Z", "+00:00"))),
    ):
        checker.checks(name, raises=ValueError)(
            lambda value, parse=parse: bool(parse(value)) or True
        )
    instance = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    jsonschema.Draft202012Validator(schema, format_checker=checker).validate(instance)
