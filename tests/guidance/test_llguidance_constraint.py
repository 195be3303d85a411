from __future__ import annotations

import json
import random
import threading
from typing import Any

import numpy as np
import pytest
from support.schemas import schemas
from support.valid_json import assert_instance

import edge_runtime.guidance.llguidance_constraint as module
from edge_runtime.errors import GrammarError
from edge_runtime.guidance.constraint import mask_of, unpacked
from edge_runtime.guidance.grammar import (
    ANY_JSON_OBJECT,
    ContextFree,
    Grammar,
    JsonSchema,
    ReasoningPrefix,
    Regex,
    literal,
)
from edge_runtime.guidance.llguidance_constraint import KEPT_GRAMMARS, GrammarCompiler
from edge_runtime.testing import ByteTokenizer

pytest.importorskip("llguidance")

TOKENIZER = ByteTokenizer(("<|bos|>", "<|end|>", "</think>"))
SIZE = 300  # padded past the tokenizer, as models' logits are
END = 257


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(TOKENIZER, vocabulary_size=SIZE, end_tokens=[END])


def allowed_after(compiler: GrammarCompiler, grammar: Grammar, text: str) -> tuple[set[str], bool]:
    """What may come after ``text``, as characters, and whether the end may."""
    constraint = compiler.constraint(grammar)
    for token in TOKENIZER.encode(text):
        allowed = unpacked(constraint.allowed_tokens(), SIZE)
        assert allowed[token], f"{chr(token)!r} is not allowed in {text!r}"
        constraint.accept(token)
    if constraint.is_complete:
        return set(), True
    allowed = unpacked(constraint.allowed_tokens(), SIZE)
    return {chr(i) for i in np.flatnonzero(allowed[:256])}, bool(allowed[END])


def matches(compiler: GrammarCompiler, grammar: Grammar, text: str) -> bool:
    try:
        return allowed_after(compiler, grammar, text)[1]
    except AssertionError:
        return False


def random_walk(compiler: GrammarCompiler, grammar: Grammar, seed: int) -> str | None:
    """A text from tokens drawn evenly among those allowed; None where it became too long."""
    constraint, chooser, tokens = compiler.constraint(grammar), random.Random(seed), []
    while len(tokens) < 1500:
        if constraint.is_complete:
            return TOKENIZER.decode(tokens)
        allowed = np.flatnonzero(unpacked(constraint.allowed_tokens(), SIZE))
        token = int(chooser.choice(allowed))
        if token == END:
            return TOKENIZER.decode(tokens)
        tokens.append(token)
        constraint.accept(token)
    return None


def test_every_schema_of_the_corpus_gives_only_instances(compiler: GrammarCompiler):
    finished = 0
    for seed, (_, schema) in enumerate(schemas()):
        text = random_walk(compiler, JsonSchema.of(schema), seed)
        if text is not None:
            finished += 1
            assert_instance(text, schema)
    assert finished >= 190


def test_a_json_object_has_no_room_for_runaway_blanks(compiler: GrammarCompiler):
    assert matches(compiler, ANY_JSON_OBJECT, '{"a": [1, 2], "b":{"c":null}}')
    for text in ('{"a":  1}', "{ ", "\n", '{"a":1 }', '{"a":1}\n', '{"a"\n'):
        assert not matches(compiler, ANY_JSON_OBJECT, text), text


def test_the_end_may_come_only_where_the_grammar_ends(compiler: GrammarCompiler):
    allowed, end = allowed_after(compiler, Regex("a{1,3}"), "")
    assert (allowed, end) == ({"a"}, False)
    allowed, end = allowed_after(compiler, Regex("a{1,3}"), "aa")
    assert (allowed, end) == ({"a"}, True)


def test_a_constraint_is_complete_once_only_the_end_can_come(compiler: GrammarCompiler):
    constraint = compiler.constraint(Regex("ab"))
    for token in b"ab":
        assert not constraint.is_complete
        constraint.accept(token)
    assert constraint.is_complete


def test_a_regex_may_hold_slashes_quotes_and_newlines(compiler: GrammarCompiler):
    assert matches(compiler, Regex('a/b\\/"\n\\\\'), 'a/b/"\n\\')


def test_a_grammar_may_be_lark_or_gbnf(compiler: GrammarCompiler):
    assert matches(compiler, ContextFree('start: "(" start ")" | "x"'), "((x))")
    gbnf = ContextFree('root ::= "yes" | "no, " [a-z]+\n')
    assert matches(compiler, gbnf, "no, never")
    assert not matches(compiler, gbnf, "nope")


def test_a_stream_of_constraints_of_one_grammar_do_not_disturb_one_another(
    compiler: GrammarCompiler,
):
    first, second = compiler.constraint(Regex("ab")), compiler.constraint(Regex("ab"))
    first.accept(ord("a"))
    assert unpacked(second.allowed_tokens(), SIZE)[ord("a")]
    assert unpacked(first.allowed_tokens(), SIZE)[ord("b")]


@pytest.mark.parametrize("closing, closing_id", [("</done>", None), ("</think>", 258)])
def test_a_grammar_can_come_after_a_reasoning_span(
    compiler: GrammarCompiler, closing: str, closing_id: int | None
):
    opened_here = ReasoningPrefix(literal("<think>"), "<think>", closing, closing_id)
    opened_before = ReasoningPrefix("", "", closing, closing_id)
    for prefix, text in (
        (opened_here, f"<think>hm {{\n{closing}\n\nab"),
        (opened_here, f"<think>{closing}ab"),
        (opened_here, "ab"),
        (opened_before, f"hm{closing}ab"),
    ):
        constraint = compiler.constraint(Regex("ab"), prefix)
        for token in TOKENIZER.encode(text):
            assert unpacked(constraint.allowed_tokens(), SIZE)[token], text
            constraint.accept(token)
        assert constraint.is_complete


@pytest.mark.parametrize(
    "schema, named",
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"not": {}}, "not"),
        ({"if": {}, "then": {}}, "if"),
        ({"type": "string", "format": "ipv99"}, "ipv99"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"enum": []}, "empty"),
        ({"type": "integer", "minimum": 5, "maximum": 2}, "minimum"),
        ({"$ref": "#"}, "matches nothing"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "Unsatisfiable"),
    ],
)
def test_what_a_schema_says_and_cannot_be_kept_is_named(
    compiler: GrammarCompiler, schema: dict[str, Any], named: str
):
    with pytest.raises(GrammarError, match=named):
        compiler.constraint(JsonSchema.of(schema))


@pytest.mark.parametrize(
    "grammar",
    [
        Regex("(" * 4000 + "a" + ")" * 4000),
        Regex(")"),
        Regex(" "),
        ContextFree("start: " + "(" * 15_000 + '"a"' + ")" * 15_000),
        ContextFree("start: missing"),
        ContextFree("root ::= ("),
        ContextFree("A0: A1 A1\n" + "".join(f"A{i}: A{i + 1} A{i + 1}\n" for i in range(1, 40))),
        ContextFree('start: "' + "x" * 40_000 + '"'),
    ],
)
def test_a_grammar_that_is_wrong_or_too_large_is_refused(
    compiler: GrammarCompiler, grammar: Grammar
):
    with pytest.raises(GrammarError):
        compiler.constraint(grammar)


def test_a_mask_that_costs_too_much_ends_the_answer_with_an_error(compiler: GrammarCompiler):
    constraint = compiler.constraint(Regex("((a{1,100}){1,100}){1,100}"))
    with pytest.raises(GrammarError, match="cannot go on"):
        for _ in range(200_000):
            constraint.allowed_tokens()
            constraint.accept(ord("a"))


def test_a_token_that_was_not_allowed_is_an_error(compiler: GrammarCompiler):
    with pytest.raises(GrammarError):
        compiler.constraint(Regex("ab")).accept(ord("b"))


def test_compiled_grammars_are_kept_and_the_least_used_go_first(monkeypatch: pytest.MonkeyPatch):
    compiler = GrammarCompiler(TOKENIZER, vocabulary_size=SIZE, end_tokens=[END])
    compiled: list[str] = []
    compile_one = module._compiled

    def compile_and_note(vocabulary: Any, text: str) -> Any:
        compiled.append(text)
        return compile_one(vocabulary, text)

    monkeypatch.setattr(module, "_compiled", compile_and_note)
    for i in range(KEPT_GRAMMARS):
        compiler.constraint(Regex(f"a{i}"))
    compiler.constraint(Regex("a0"))
    compiler.constraint(Regex("new"))
    count = len(compiled)
    compiler.constraint(Regex("a0"))
    assert len(compiled) == count == KEPT_GRAMMARS + 1
    compiler.constraint(Regex("a1"))
    assert len(compiled) == count + 1


def test_a_grammar_that_compiles_for_too_long_is_given_up_and_blocks_nobody_for_ever(
    monkeypatch: pytest.MonkeyPatch,
):
    compiler = GrammarCompiler(TOKENIZER, vocabulary_size=SIZE, end_tokens=[END])
    release = threading.Event()
    compile_one = module._compiled

    def compile_slowly(vocabulary: Any, text: str) -> Any:
        release.wait(20)
        return compile_one(vocabulary, text)

    monkeypatch.setattr(module, "_compiled", compile_slowly)
    monkeypatch.setattr(module, "TIME_LIMIT_S", 0.05)
    monkeypatch.setattr(module, "_WAIT_S", 0.05)
    with pytest.raises(GrammarError, match="took longer"):
        compiler.constraint(Regex("a"))
    with pytest.raises(GrammarError, match="other grammars"):
        compiler.constraint(Regex("b"))
    release.set()
    monkeypatch.setattr(module, "_WAIT_S", 10.0)
    monkeypatch.setattr(module, "TIME_LIMIT_S", 10.0)
    assert matches(compiler, Regex("b"), "b")


def test_a_schemas_own_wish_for_blanks_is_not_heard(compiler: GrammarCompiler):
    schema = {"x-guidance": {"whitespace_flexible": True, "lenient": True}, "type": "object"}
    assert not matches(compiler, JsonSchema.of(schema), "{ ")


def test_strings_are_written_without_escapes_that_could_be_half_a_character(
    compiler: GrammarCompiler,
):
    text = json.dumps({"a": "\ud83d"})
    assert not matches(compiler, ANY_JSON_OBJECT, text)
    assert matches(compiler, ANY_JSON_OBJECT, '{"a":"é\\n"}')


def test_masks_are_packed_and_unpacked():
    mask = mask_of([0, 31, 32, 70], 71)
    assert mask.shape == (3,) and mask.dtype == np.uint32
    assert np.flatnonzero(unpacked(mask, 71)).tolist() == [0, 31, 32, 70]
    assert not unpacked(mask, 200)[71:].any()
