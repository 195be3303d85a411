from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from edge_runtime.cli.grammar_argument import add_grammar_arguments, chosen_grammar
from edge_runtime.errors import GrammarError, UsageError
from edge_runtime.guidance.grammar import ContextFree, JsonSchema, Regex


def chosen(*arguments: str) -> object:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_grammar_arguments(parser)
    return chosen_grammar(parser.parse_args(arguments))


def test_silence_asks_for_nothing():
    assert chosen() is None


def test_each_argument_is_a_grammar_of_its_kind(tmp_path: Path):
    schema, grammar = tmp_path / "s.json", tmp_path / "g.lark"
    schema.write_text('{"type": "object"}')
    grammar.write_text('start: "x"')
    assert chosen("--json-schema", str(schema)) == JsonSchema.of({"type": "object"})
    assert chosen("--grammar", str(grammar)) == ContextFree('start: "x"')
    assert chosen("--regex", "a|b") == Regex("a|b")


def test_a_file_that_is_not_there_or_no_json_is_named(tmp_path: Path):
    with pytest.raises(UsageError, match=r"gone\.json cannot be read"):
        chosen("--json-schema", str(tmp_path / "gone.json"))
    broken = tmp_path / "broken.json"
    broken.write_bytes(b"{")
    with pytest.raises(UsageError, match=r"broken\.json is no JSON"):
        chosen("--json-schema", str(broken))
    broken.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="no UTF-8"):
        chosen("--grammar", str(broken))


def test_a_schema_that_cannot_be_kept_is_refused_before_anything_is_loaded(tmp_path: Path):
    schema = tmp_path / "s.json"
    schema.write_text('{"multipleOf": 123456789}')
    with pytest.raises(GrammarError, match="multipleOf"):
        chosen("--json-schema", str(schema))
