"""JSON as bytes, and bytes as JSON, in the strictness that a wire form needs.

Knows no field.
"""

from __future__ import annotations

import json
from typing import Any

from edge_runtime.api.openai_error import RequestRefusedError


def json_bytes(value: object) -> bytes:
    """UTF-8 JSON without spaces; half of a surrogate pair, which UTF-8 has not, stays escaped."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")


def json_object(raw: bytes) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        RequestRefusedError: it is none: not UTF-8, not JSON, nested too deep, a number of too many
            digits, NaN or an infinity, or another kind of value.
    """
    try:
        value = json.loads(raw.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as exc:
        raise _no_json(f"it is not UTF-8 at byte {exc.start}") from exc
    except RecursionError as exc:
        raise _no_json("it is nested too deep") from exc
    except json.JSONDecodeError as exc:
        raise _no_json(f"{exc.msg} at line {exc.lineno} column {exc.colno}") from exc
    except ValueError as exc:
        raise _no_json(str(exc)[:100]) from exc
    if not isinstance(value, dict):
        raise _no_json(f"it is a {type(value).__name__}, not an object")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _no_json(why: str) -> RequestRefusedError:
    return RequestRefusedError(
        f"the request's body is no JSON object: {why}", param=None, code="invalid_json"
    )
