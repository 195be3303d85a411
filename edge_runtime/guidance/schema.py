"""Looks at a JSON schema before it is compiled: bounds on its size, and what would be half kept.

A schema may come from anyone. The compiler underneath overflows the stack on long chains of
references, and takes minutes for some schemas of a few kilobytes; the bounds here keep each of
those below a second. And it ignores, or keeps only in part, some of what a schema can say: that is
refused by name, or written more strictly, so that an answer is always an instance.

Knows JSON Schema (draft 2020-12, and the tuples of older ones); knows no grammar.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from edge_runtime.errors import GrammarError

MAX_CHARACTERS = 131_072
MAX_DEPTH = 64
MAX_TOTAL_DEPTH = 400  # of the schema and everything it refers to: twice this overflows no stack
MAX_PROPERTIES = 400  # of one object; optional ones cost the square of their number
MAX_OPTIONAL_PAIRS = 200_000  # that square, over the whole schema
MAX_ALTERNATIVES = 2_000
MAX_MULTIPLE = 10_000  # a larger integer's multiples need an automaton of as many states

_IN_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_IN_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_ALONE = ("items", "additionalProperties")

# The compiler passes these over in silence, and they would change what is valid.
_PASSED_OVER = ("additionalItems", "divisibleBy", "extends", "disallow", "contentEncoding",
                "contentMediaType", "contentSchema", "$dynamicRef", "$recursiveRef")  # fmt: skip

# The compiler's own take the 31st of February. No leap seconds: few readers know them.
_DATE = (
    r"[1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    r"|02-(0[1-9]|1[0-9]|2[0-8]))"
)
_TIME = (
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
_STRICT_FORMATS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
}


def checked_schema(schema: object) -> dict[str, Any]:
    """A schema within the bounds, rewritten where the compiler would be too lenient.

    Args:
        schema: as ``json.loads`` gives it.

    Returns:
        A new schema with the same instances or fewer.

    Raises:
        GrammarError: it is no schema, too large, or says what cannot be kept.
    """
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise GrammarError(f"a JSON schema must be an object, not {type(schema).__name__}")
    _check_depth(schema)
    try:
        size = len(json.dumps(schema, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError) as exc:
        raise GrammarError(f"the schema is no JSON: {exc}") from exc
    if size > MAX_CHARACTERS:
        raise GrammarError(
            f"the schema has {size} characters; at most {MAX_CHARACTERS} are allowed"
        )
    _check_references(schema)
    _Bounds().check(schema)
    rewritten: dict[str, Any] = _rewritten(schema)
    return rewritten


def _check_depth(schema: object) -> None:
    """Without recursion, since a hostile one is deeper than Python's stack."""
    level: list[object] = [schema]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise GrammarError(f"the schema is nested deeper than {MAX_DEPTH} levels")
        level = [
            child
            for node in level
            for child in (
                node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
            )
            if isinstance(child, (dict, list))
        ]


def subschemas(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas directly inside one, each with its path from there."""
    for key in _IN_LISTS:
        value = schema.get(key)
        for i, inner in enumerate(value if isinstance(value, list) else ()):
            yield f"{key}[{i}]", inner
    for key in _IN_MAPS:
        value = schema.get(key)
        for name, inner in value.items() if isinstance(value, dict) else ():
            yield f"{key}.{name}", inner
    for key in _ALONE:
        value = schema.get(key)
        if isinstance(value, dict):
            yield key, value
        for i, inner in enumerate(value if isinstance(value, list) else ()):
            yield f"{key}[{i}]", inner


def _depth(node: object) -> int:
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return 1 + max(map(_depth, children), default=0)


def _check_references(root: dict[str, Any]) -> None:
    """References may form rings, but the way through all of them must not be too long."""
    targets: dict[str, object] = {}

    def collect(node: object) -> None:
        if isinstance(node, dict):
            pointer = node.get("$ref")
            if isinstance(pointer, str) and pointer not in targets:
                targets[pointer] = _at(root, pointer)
            for child in node.values():
                collect(child)
        elif isinstance(node, list):
            for child in node:
                collect(child)

    collect(root)
    total = sum(_depth(target) for target in targets.values())
    if total > MAX_TOTAL_DEPTH:
        raise GrammarError(
            f"the schema's {len(targets)} references lead {total} levels deep; "
            f"at most {MAX_TOTAL_DEPTH} are allowed"
        )


def _at(root: dict[str, Any], pointer: str) -> object:
    if not pointer.startswith("#"):
        raise GrammarError(f"the schema refers to {pointer!r:.100}: nothing is fetched")
    node: Any = root
    for step in pointer[1:].split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and key in node:
            node = node[key]
        elif isinstance(node, list) and key.isdecimal() and int(key) < len(node):
            node = node[int(key)]
        else:
            raise GrammarError(f"the schema refers to {pointer!r:.100}, which it does not hold")
    return node


class _Bounds:
    """Counts over a whole schema what costs time where it is compiled."""

    def __init__(self) -> None:
        self._optional_pairs = 0
        self._alternatives = 0

    def check(self, schema: object, path: str = "the schema") -> None:
        if not isinstance(schema, dict):
            return
        for key in _PASSED_OVER:
            if key in schema:
                raise GrammarError(f"{path} uses {key}, which is not supported")
        self._check_object(schema, path)
        self._check_values(schema, path)
        self._check_alternatives(schema)
        for name, inner in subschemas(schema):
            self.check(inner, f"{path}.{name}"[:200])

    def _check_object(self, schema: Mapping[str, Any], path: str) -> None:
        properties = schema.get("properties")
        names = properties if isinstance(properties, dict) else {}
        required = schema.get("required")
        wanted = (
            {n for n in required if isinstance(n, str)} if isinstance(required, list) else set()
        )
        if len(names) > MAX_PROPERTIES or len(wanted) > MAX_PROPERTIES:
            raise GrammarError(
                f"{path} has {max(len(names), len(wanted))} properties; "
                f"at most {MAX_PROPERTIES} are allowed"
            )
        for name in (*names, *wanted):
            _check_writable(name, path)
        self._optional_pairs += len(names.keys() - wanted) ** 2
        if self._optional_pairs > MAX_OPTIONAL_PAIRS:
            raise GrammarError("the schema has too many optional properties")
        least = schema.get("minProperties")
        if isinstance(least, (int, float)) and least > max(1, len(wanted)):
            # Keys outside `properties` may repeat, and a reader counts a repeated one once.
            raise GrammarError(
                f"{path} uses minProperties {least}, which is supported up to 1 "
                "or up to the number of required properties"
            )

    @staticmethod
    def _check_values(schema: Mapping[str, Any], path: str) -> None:
        multiple = schema.get("multipleOf")
        if isinstance(multiple, (int, float)) and multiple > MAX_MULTIPLE:
            raise GrammarError(
                f"{path} uses multipleOf {multiple}; at most {MAX_MULTIPLE} is supported"
            )
        values = schema.get("enum")
        for value in (*(values if isinstance(values, list) else ()), schema.get("const")):
            _check_writable(value, path)

    def _check_alternatives(self, schema: Mapping[str, Any]) -> None:
        for key in ("anyOf", "oneOf"):
            value = schema.get(key)
            self._alternatives += len(value) if isinstance(value, list) else 0
        if self._alternatives > MAX_ALTERNATIVES:
            raise GrammarError(
                f"the schema has over {MAX_ALTERNATIVES} alternatives in anyOf and oneOf"
            )


def _check_writable(value: object, path: str) -> None:
    """Strings that an answer must hold literally have to be writable without \\uXXXX."""
    text = json.dumps(value, ensure_ascii=False)
    if "\\u00" in text.replace("\\\\", ""):
        raise GrammarError(f"{path} holds a control character in {text[:60]}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as exc:
        raise GrammarError(f"{path} holds half of a surrogate pair") from exc


def _rewritten(schema: Any) -> Any:
    """A copy in which each date and time is one that exists."""
    if not isinstance(schema, dict):
        return schema
    copy = dict(schema)
    for key in _IN_LISTS:
        if isinstance(copy.get(key), list):
            copy[key] = [_rewritten(inner) for inner in copy[key]]
    for key in _IN_MAPS:
        if isinstance(copy.get(key), dict):
            copy[key] = {name: _rewritten(inner) for name, inner in copy[key].items()}
    for key in _ALONE:
        value = copy.get(key)
        if isinstance(value, dict):
            copy[key] = _rewritten(value)
        elif isinstance(value, list):
            copy[key] = [_rewritten(inner) for inner in value]
    pattern = _STRICT_FORMATS.get(str(copy.get("format")))
    if pattern is None:
        return copy
    del copy["format"]
    if "pattern" not in copy:
        return {**copy, "pattern": pattern}
    return {**copy, "allOf": [*copy.get("allOf", ()), {"pattern": pattern}]}
