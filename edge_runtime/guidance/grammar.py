"""The kinds of grammar that a caller can ask for, as values, and as text for llguidance.

Every kind becomes one text, which is also its name in a cache. Knows no tokenizer and does not
import llguidance; whether a text compiles, :mod:`edge_runtime.guidance.llguidance_constraint` says.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edge_runtime.errors import GrammarError
from edge_runtime.guidance.schema import checked_schema

MAX_REGEX_CHARACTERS = 8_192
MAX_GRAMMAR_CHARACTERS = 32_768

# A small model that may write blanks writes them until its tokens run out. One blank after a comma
# or colon stays, because that is how many models were taught to write. Without \uXXXX no answer
# holds half of a surrogate pair, and no key is written in two ways.
_JSON_STYLE = {
    "item_separator": ", ?",
    "key_separator": ": ?",
    "whitespace_flexible": False,
    "coerce_one_of": False,
    "lenient": False,
    "json_allowed_escapes": 'nrbtf\\"',
}


@dataclass(frozen=True)
class JsonSchema:
    """An instance of a JSON schema. ``text`` is JSON that was checked: see :meth:`of`."""

    text: str

    @classmethod
    def of(cls, schema: object) -> JsonSchema:
        """A schema as ``json.loads`` gives it; the order of properties is kept.

        Raises:
            GrammarError: it is no schema, too large, or asks what is not supported.
        """
        return cls(json.dumps(checked_schema(schema), ensure_ascii=False))

    @classmethod
    def of_text(cls, text: str) -> JsonSchema:
        """As :meth:`of`, of the schema's JSON text."""
        try:
            schema = json.loads(text)
        except (ValueError, RecursionError) as exc:
            raise GrammarError(f"the schema is no JSON: {first_line(exc)}") from exc
        return cls.of(schema)


@dataclass(frozen=True)
class Regex:
    """A text that matches as a whole. Syntax of Rust's regex crate: no look-around."""

    pattern: str


@dataclass(frozen=True)
class ContextFree:
    """A grammar in llguidance's dialect of Lark, or in llama.cpp's GBNF (told by its ``::=``)."""

    text: str


Grammar = JsonSchema | Regex | ContextFree

ANY_JSON_OBJECT = JsonSchema.of({"type": "object"})


@dataclass(frozen=True)
class ReasoningPrefix:
    """A reasoning span that comes before what a grammar describes.

    Args:
        opening: what opens the span, as a grammar's term; empty where the prompt ends with it. An
            answer may do without a span that it would have to open.
        opening_text: the same as it is written.
        closing: the tag that closes it.
        closing_token_id: its id where it is a special token.
    """

    opening: str
    opening_text: str
    closing: str
    closing_token_id: int | None


def styled(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema that says to llguidance how JSON is to be written; what it said itself is lost."""
    plain = {key: value for key, value in schema.items() if key != "x-guidance"}
    return {"x-guidance": _JSON_STYLE, **plain}


def literal(text: str) -> str:
    """A string as a grammar's term."""
    return json.dumps(text, ensure_ascii=False)


def grammar_text(grammar: Grammar, reasoning: ReasoningPrefix | None = None) -> str:
    """The text for llguidance.

    Raises:
        GrammarError: a regex or grammar is empty or too long, or GBNF that cannot be converted.
    """
    answer = _named(grammar)
    grammars = [answer]
    if reasoning is not None:
        top = rules_after_reasoning("@answer", reasoning)
        grammars = [{"lark_grammar": top}, {"name": "answer", **answer}]
    return json.dumps({"grammars": grammars}, ensure_ascii=False)


def rules_after_reasoning(answer: str, reasoning: ReasoningPrefix) -> str:
    """Rules whose ``start`` is a reasoning span and then ``answer``, a term."""
    if reasoning.closing_token_id is None:
        span = f"reasoned[suffix={literal(reasoning.closing)}]: REASONED"
    else:
        span = f"reasoned: REASONED <[{reasoning.closing_token_id}]>"
    start = f"reasoned BLANKS {answer}"
    if reasoning.opening:
        start = f"{reasoning.opening} {start} | {answer}"
    return f"start: {start}\n{span}\nREASONED: /(?s:.*)/\nBLANKS: /\\n{{0,2}}/\n"


def text_rule(reasoning: ReasoningPrefix | None) -> str:
    """The rule ``TEXT``: any text, but one that opens a reasoning span is no answer yet."""
    if reasoning is None or not reasoning.opening_text:
        return "TEXT: /(?s:.*)/\n"
    opened = "".join(f"\\x{{{ord(c):x}}}" for c in reasoning.opening_text)
    return f"TEXT: /(?s:.*)/ & ~/{opened}(?s:.*)/\n"


def _named(grammar: Grammar) -> dict[str, Any]:
    if isinstance(grammar, JsonSchema):
        return {"json_schema": styled(json.loads(grammar.text))}
    if isinstance(grammar, Regex):
        _check_length("regex", grammar.pattern, MAX_REGEX_CHARACTERS)
        return {"lark_grammar": f"start: /{_without_bare_slashes(grammar.pattern)}/"}
    _check_length("grammar", grammar.text, MAX_GRAMMAR_CHARACTERS)
    return {"lark_grammar": _lark(grammar.text)}


def _check_length(kind: str, text: str, most: int) -> None:
    if not text.strip():
        raise GrammarError(f"the {kind} is empty")
    if len(text) > most:
        raise GrammarError(f"the {kind} has {len(text)} characters; at most {most} are allowed")


def _without_bare_slashes(pattern: str) -> str:
    """The pattern as it stands between slashes: one of its own would end it, as would a newline."""
    pieces: list[str] = []
    escaped = False
    for character in pattern:
        if character == "/" and not escaped:
            pieces.append("\\/")
        elif character == "\n":
            pieces.append("n" if escaped else "\\n")
        else:
            pieces.append(character)
        escaped = character == "\\" and not escaped
    return "".join(pieces)


def _lark(text: str) -> str:
    if "::=" not in text:
        return text
    try:
        from llguidance.gbnf_to_lark import gbnf_to_lark
    except ImportError as exc:
        raise not_installed() from exc
    try:
        return str(gbnf_to_lark(text))
    except Exception as exc:  # it raises its own kind, and Python's where it is led astray
        raise GrammarError(f"the grammar is no GBNF that can be read: {first_line(exc)}") from exc


def is_installed() -> bool:
    """Whether grammars can be compiled here."""
    return importlib.util.find_spec("llguidance") is not None


def not_installed() -> GrammarError:
    """The error for structured output without the package that it needs."""
    return GrammarError(
        "structured output and tools need the package llguidance, which is not installed",
        hint="pip install 'edge-runtime[guide]'",
    )


def first_line(complaint: object) -> str:
    """The first line of a foreign complaint, short enough to quote."""
    lines = [line.strip() for line in str(complaint).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(complaint).__name__
