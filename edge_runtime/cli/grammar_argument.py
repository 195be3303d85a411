"""What `run` may hold an answer to: a JSON schema or a grammar in a file, or a regex.

Knows files and arguments; knows no engine.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from edge_runtime.errors import UsageError
from edge_runtime.guidance.grammar import ContextFree, Grammar, JsonSchema, Regex


def add_grammar_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments, of which one may be given."""
    group = parser.add_argument_group(
        "form of the answer", "needs the extra `guide`; --max-tokens may still cut it short"
    ).add_mutually_exclusive_group()
    group.add_argument(
        "--json-schema", metavar="FILE", type=Path, help="an instance of the JSON schema in FILE"
    )
    group.add_argument(
        "--grammar", metavar="FILE", type=Path, help="a text of the Lark or GBNF grammar in FILE"
    )
    group.add_argument("--regex", metavar="PATTERN", help="a text that matches as a whole")


def chosen_grammar(arguments: argparse.Namespace) -> Grammar | None:
    """The grammar that the arguments ask for, if any; before anything slow is done.

    Raises:
        UsageError: a file that cannot be read, or is no JSON.
        GrammarError: a schema that is too large, or says what cannot be kept.
    """
    if arguments.json_schema is not None:
        text = _read(arguments.json_schema)
        try:
            schema = json.loads(text)
        except (ValueError, RecursionError) as exc:
            raise UsageError(f"{arguments.json_schema} is no JSON: {exc}") from exc
        return JsonSchema.of(schema)
    if arguments.grammar is not None:
        return ContextFree(_read(arguments.grammar))
    return None if arguments.regex is None else Regex(arguments.regex)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as exc:
        raise UsageError(f"{path} cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise UsageError(f"{path} is no UTF-8 text") from exc
