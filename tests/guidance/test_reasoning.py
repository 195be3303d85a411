from __future__ import annotations

import numpy as np
import pytest

from edge_runtime.guidance.answer_parser import AnswerParser
from edge_runtime.guidance.answer_parts import Message, message_of
from edge_runtime.guidance.constraint import Mask, mask_of, unpacked
from edge_runtime.guidance.hermes_tools import HermesFormat
from edge_runtime.guidance.reasoning import (
    ReasoningBudget,
    ReasoningSplitter,
    ReasoningTags,
    closed_by,
    opened_by,
    reasoning_tags,
)
from edge_runtime.testing import ByteTokenizer

TAGS = ReasoningTags("<think>", "</think>")
TOKENIZER = ByteTokenizer()
SIZE = TOKENIZER.vocabulary_size


def read(text: str, *, opened: bool, pieces: int = 1) -> tuple[str, str]:
    """Reasoning and content of an answer that comes in so many pieces."""
    parser = AnswerParser(ReasoningSplitter(TAGS, opened=opened))
    size = -(-len(text) // pieces)
    parts = [p for i in range(0, len(text), size) for p in parser.feed(text[i : i + size])]
    message = message_of(parts + parser.finish())
    return message.reasoning, message.content


@pytest.mark.parametrize(
    "text, opened, expected",
    [
        ("<think>\nWell, a<b\n</think>\n\nYes.", False, ("Well, a<b", "Yes.")),
        ("\nWell.</think>Yes.", True, ("Well.", "Yes.")),
        ("Yes, <think> is a tag </think>.", False, ("", "Yes, <think> is a tag </think>.")),
        ("<think></think>Yes", False, ("", "Yes")),
        ("<think>never closed", False, ("never closed", "")),
        ("<think>half closed</thi", False, ("half closed</thi", "")),
        ("<thi", False, ("", "<thi")),
        ("  Yes", False, ("", "  Yes")),
        ("no tag at all", True, ("no tag at all", "")),
        ("a</think>b</think>c", True, ("a", "b</think>c")),
        ("one\n\ntwo</think>\nthree\n", True, ("one\n\ntwo", "three\n")),
    ],
)
def test_a_span_at_the_beginning_is_reasoning_however_the_text_is_cut(
    text: str, opened: bool, expected: tuple[str, str]
):
    for pieces in (1, 2, 3, len(text)):
        assert read(text, opened=opened, pieces=pieces) == expected, pieces


def test_reasoning_streams_before_it_is_over():
    parser = AnswerParser(ReasoningSplitter(TAGS, opened=True))
    assert message_of(parser.feed("I wonder")).reasoning == "I wonder"


def test_calls_are_read_after_reasoning_and_not_inside_of_it():
    call = '<tool_call>{"name": "clock", "arguments": {}}</tool_call>'
    parser = AnswerParser(ReasoningSplitter(TAGS, opened=True), HermesFormat().parser())
    message = message_of([*parser.feed(f"maybe {call}</think>\n{call}"), *parser.finish()])
    assert message.reasoning == f"maybe {call}"
    assert [c.name for c in message.tool_calls] == ["clock"]
    assert message.content == ""
    assert parser.has_calls


def test_without_parts_everything_is_content():
    parser = AnswerParser()
    assert message_of([*parser.feed("<think>a"), *parser.finish()]) == Message("<think>a", "", ())
    assert not parser.has_calls


def test_tags_are_found_in_templates_and_prompts():
    assert reasoning_tags("{{ '<think>' }}") == TAGS
    assert reasoning_tags("[THINK]") == ReasoningTags("[THINK]", "[/THINK]")
    assert reasoning_tags("<|im_start|>") is None
    assert opened_by("<|assistant|><think>\n", TAGS)
    assert not opened_by("<|assistant|>\n", TAGS)
    assert closed_by("<think>\n\n</think>\n\n", TAGS)


# The budget


def budget(tokens: int, *, opened: bool = False, inner: object = None) -> ReasoningBudget:
    return ReasoningBudget(
        inner,  # type: ignore[arg-type]
        tags=TAGS, opened=opened, budget=tokens, tokenizer=TOKENIZER, vocabulary_size=SIZE,
    )  # fmt: skip


def say(constraint: ReasoningBudget, text: str, most: int = 100) -> str:
    """What comes out where the model wants to say ``text``."""
    wanted, said = list(TOKENIZER.encode(text)), []
    while wanted and len(said) < most and not constraint.is_complete:
        mask = constraint.allowed_tokens()
        if mask is None or unpacked(mask, SIZE)[wanted[0]]:
            token = wanted.pop(0)
        else:
            token = int(np.flatnonzero(unpacked(mask, SIZE))[0])
        said.append(token)
        constraint.accept(token)
    return TOKENIZER.decode(said)


def test_reasoning_past_its_budget_is_closed():
    assert say(budget(5), "<think>0123456789", 20) == "<think>01234</think>"
    assert say(budget(5, opened=True), "0123456789", 13) == "01234</think>"
    assert say(budget(0, opened=True), "0123", 12) == "</think>0123"


def test_reasoning_within_its_budget_is_left_alone():
    text = "<think>0123</think>the answer is long and free"
    assert say(budget(12), text) == text
    assert say(budget(2), "no reasoning at all") == "no reasoning at all"


def test_what_follows_reasoning_stays_under_its_own_constraint():
    class Heard:
        def __init__(self) -> None:
            self.heard: list[int] = []

        def allowed_tokens(self) -> Mask | None:
            return mask_of([ord("x")], SIZE) if TOKENIZER.decode(self.heard).endswith(">") else None

        def accept(self, token_id: int) -> None:
            self.heard.append(token_id)

        @property
        def is_complete(self) -> bool:
            return TOKENIZER.decode(self.heard).endswith("x")

    inner = Heard()
    assert say(budget(3, opened=True, inner=inner), "0123456") == "012</think>x"
    assert TOKENIZER.decode(inner.heard) == "012</think>x"
