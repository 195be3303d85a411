"""Every family, read and written: what its grammar allows, its parser understands."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import numpy as np
import pytest

from edge_runtime.errors import GrammarError
from edge_runtime.guidance.answer_parser import AnswerParser
from edge_runtime.guidance.answer_parts import Message, Part, message_of
from edge_runtime.guidance.bare_tools import GenericFormat, Llama3Format
from edge_runtime.guidance.constraint import unpacked
from edge_runtime.guidance.grammar import literal, styled, text_rule
from edge_runtime.guidance.hermes_tools import HermesFormat
from edge_runtime.guidance.mistral_tools import MistralFormat
from edge_runtime.guidance.tool_families import tool_format
from edge_runtime.guidance.tool_format import ToolFormat
from edge_runtime.guidance.tools import Tool, ToolChoice, ToolUse
from edge_runtime.testing import ByteTokenizer

WEATHER = Tool.of(
    "get_weather",
    {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 9}, "days": {"enum": [1, 2]}},
        "required": ["city"],
    },
    {"type": "function", "function": {"name": "get_weather"}},
)
CLOCK = Tool.of("clock", None, {"type": "function", "function": {"name": "clock"}})
PARIS = ("get_weather", {"city": 'P{}"\\ris'})
NOW = ("clock", {})

FORMATS: dict[str, ToolFormat] = {
    "hermes": HermesFormat(),
    "llama3": Llama3Format(),
    "mistral": MistralFormat(named=False),
    "mistral-named": MistralFormat(named=True),
    "generic": GenericFormat(),
}


def _object(call: tuple[str, object], key: str = "arguments") -> str:
    return json.dumps({"name": call[0], key: call[1]})


WRITTEN: dict[str, Callable[..., str]] = {
    "hermes": lambda *calls: "\n".join(
        f"<tool_call>\n{_object(call)}\n</tool_call>" for call in calls
    ),
    "llama3": lambda *calls: "; ".join(_object(call, "parameters") for call in calls),
    "mistral": lambda *calls: f"[TOOL_CALLS][{', '.join(map(_object, calls))}]",
    "mistral-named": lambda *calls: "".join(
        f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments)}" for name, arguments in calls
    ),
    "generic": lambda *calls: "\n".join(map(_object, calls)),
}
families = pytest.mark.parametrize("family", FORMATS)
families_with_text = pytest.mark.parametrize("family", ["hermes", "mistral", "mistral-named"])


def read(family: str, text: str, pieces: int = 1, seed: int = 0) -> Message:
    """The answer as it is understood when it comes in so many pieces."""
    cuts = sorted(random.Random(seed).randrange(len(text) + 1) for _ in range(pieces - 1))
    parser = AnswerParser(None, FORMATS[family].parser())
    parts: list[Part] = []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        parts += parser.feed(text[start:end])
    return message_of(parts + parser.finish())


def calls_of(message: Message) -> list[tuple[str, object]]:
    return [(call.name, json.loads(call.arguments)) for call in message.tool_calls]


@families
def test_calls_are_read_however_the_text_is_cut(family: str):
    text = WRITTEN[family](PARIS, NOW)
    for pieces in (1, 2, 5, len(text)):
        for seed in range(20):
            message = read(family, text, pieces, seed)
            assert calls_of(message) == [PARIS, NOW], (pieces, seed)
            assert message.content == ""
            assert len({call.id for call in message.tool_calls}) == 2


@families
def test_a_text_without_a_call_is_content_to_the_last_character(family: str):
    for text in ("Hello <b>there</b> [x] \n", " ", "a < b", "no {call} here", "x <tool", "[TOOL"):
        for pieces in (1, len(text)):
            assert read(family, text, pieces) == Message(text, "", ())


@families_with_text
def test_content_before_a_call_stays_content(family: str):
    message = read(family, "I will look.\n\n" + WRITTEN[family](NOW), 7)
    assert message.content == "I will look."
    assert calls_of(message) == [NOW]


def test_content_after_a_call_stays_content():
    message = read("hermes", WRITTEN["hermes"](NOW) + "\nDone.", 9)
    assert (message.content, calls_of(message)) == ("Done.", [NOW])


@pytest.mark.parametrize(
    "family, text",
    [
        ("hermes", "<tool_call>\nnot json\n</tool_call>"),
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": 3, "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name"'),
        ("hermes", "<tool_call>[1]</tool_call>"),
        ("llama3", '{"temperature": 3}'),
        ("llama3", '{"name": "x'),
        ("llama3", "{"),
        ("generic", '{"answer": [1, {"name": "x"}]} and more'),
        ("mistral", "[TOOL_CALLS][1]"),
        ("mistral", '[TOOL_CALLS][{"n": 1}]'),
        ("mistral", "[TOOL_CALLS]"),
        ("mistral-named", "[TOOL_CALLS]clo"),
    ],
)
def test_what_is_no_call_becomes_content_again(family: str, text: str):
    for pieces in (1, len(text)):
        message = read(family, text, pieces)
        assert message.tool_calls == ()
        assert message.content == text


@families
def test_a_call_that_was_cut_keeps_the_arguments_so_far(family: str):
    text = WRITTEN[family](PARIS)
    cut = text[: text.index("ris")]
    (call,) = read(family, cut, len(cut)).tool_calls
    assert call.name == "get_weather"
    assert call.arguments.endswith("\\\\") and call.arguments.startswith('{"city"')


def test_arguments_stream_before_the_call_is_over():
    parser = HermesFormat().parser()
    parts = parser.feed('<tool_call>{"name": "clock", "arguments": {"a": "lo')
    message = message_of(parts)
    assert message.tool_calls[0].arguments == '{"a": "lo'


def test_arguments_before_the_name_and_under_another_key_are_read():
    text = '<tool_call>{"arguments": {"x": [{}]}, "name": "clock"}</tool_call>'
    assert calls_of(read("hermes", text, len(text))) == [("clock", {"x": [{}]})]
    assert calls_of(read("llama3", _object(NOW, "arguments"))) == [NOW]


def test_the_python_tag_is_no_content():
    text = "<|python_tag|>" + WRITTEN["llama3"](NOW)
    for pieces in (1, len(text)):
        message = read("llama3", text, pieces)
        assert (message.content, calls_of(message)) == ("", [NOW])


def test_mistrals_ids_are_nine_letters_and_digits():
    (call,) = read("mistral", WRITTEN["mistral"](NOW)).tool_calls
    assert len(call.id) == 9 and call.id.isalnum()


# Grammars

TOKENIZER = ByteTokenizer(("<|bos|>", "<|end|>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>"))
END, SIZE = 257, TOKENIZER.vocabulary_size


def _term(mark: str) -> str:
    token = TOKENIZER.token_to_id(mark)
    return literal(mark) if token is None else f"<[{token}]>"


def constraint_of(family: str, use: ToolUse):
    pytest.importorskip("llguidance")
    from edge_runtime.guidance.llguidance_constraint import GrammarCompiler

    rules = "start: answer\n" + FORMATS[family].rules(use, _term) + text_rule(None)
    arguments = [
        {"name": f"args{i}", "json_schema": styled(tool.parameters)}
        for i, tool in enumerate(use.callable)
    ]
    text = json.dumps({"grammars": [{"lark_grammar": rules}, *arguments]})
    compiler = GrammarCompiler(TOKENIZER, vocabulary_size=SIZE, end_tokens=[END])
    return compiler.constraint_of_text(text)


def may_say(family: str, use: ToolUse, text: str) -> bool:
    """Whether the whole answer is allowed, end included."""
    constraint = constraint_of(family, use)
    for token in [*TOKENIZER.encode(text), END]:
        if constraint.is_complete:
            return token == END
        if not unpacked(constraint.allowed_tokens(), SIZE)[token]:
            return False
        constraint.accept(token)
    return True


BOTH = (WEATHER, CLOCK)
AUTO, REQUIRED = ToolUse(BOTH), ToolUse(BOTH, choice=ToolChoice.REQUIRED)
SHORT = ("get_weather", {"city": "Rome"})


@families
def test_the_model_may_call_in_its_familys_way_or_not_at_all(family: str):
    written = WRITTEN[family]
    assert may_say(family, AUTO, "Hello <b>you</b>")
    assert may_say(family, AUTO, written(SHORT, NOW))
    assert not may_say(family, AUTO, written(("get_weather", {"town": "Rome"})))
    assert not may_say(family, AUTO, written(("get_weather", {"city": 3})))
    assert not may_say(family, AUTO, written(("unknown", {})))
    assert not may_say(family, AUTO, written(SHORT)[:-14])


@families
def test_where_a_call_is_required_there_is_one(family: str):
    written = WRITTEN[family]
    assert may_say(family, REQUIRED, written(NOW))
    assert may_say(family, REQUIRED, written(SHORT, NOW))
    assert not may_say(family, REQUIRED, "Hello")
    assert not may_say(family, REQUIRED, "")


@families
def test_a_named_tool_is_the_only_one(family: str):
    use = ToolUse(BOTH, only="clock")
    assert may_say(family, use, WRITTEN[family](NOW))
    assert not may_say(family, use, WRITTEN[family](SHORT))
    assert not may_say(family, use, "Hello")


@families
@pytest.mark.parametrize("choice", list(ToolChoice))
def test_without_parallel_calls_there_is_one_at_most(family: str, choice: ToolChoice):
    use = ToolUse(BOTH, choice=choice, parallel=False)
    assert may_say(family, use, WRITTEN[family](SHORT))
    assert not may_say(family, use, WRITTEN[family](SHORT, NOW))


@families_with_text
def test_text_may_come_before_a_call(family: str):
    assert may_say(family, AUTO, "Let me see.\n" + WRITTEN[family](SHORT))


@families
def test_whatever_the_grammar_allows_is_understood(family: str):
    for seed in range(8):
        chooser, constraint, tokens = random.Random(seed), constraint_of(family, REQUIRED), []
        while not constraint.is_complete and len(tokens) < 3000:
            allowed = np.flatnonzero(unpacked(constraint.allowed_tokens(), SIZE)).tolist()
            token = END if END in allowed else chooser.choice(allowed)
            if token == END:
                break
            tokens.append(token)
            constraint.accept(token)
        message = read(family, TOKENIZER.decode(tokens, skip_special=False), 9, seed)
        assert message.content == "" and message.tool_calls
        for name, arguments in calls_of(message):
            assert arguments == {} if name == "clock" else "city" in arguments


# Families and conversations


@pytest.mark.parametrize(
    "source, knows, expected",
    [
        ("{% if tools %}<tool_call>{% endif %}", True, HermesFormat),
        ("[TOOL_CALLS]", True, MistralFormat),
        ("<|start_header_id|>ipython {{ tools }} parameters", True, Llama3Format),
        ("{{ tools }}", True, GenericFormat),
        ("<|im_start|>", False, GenericFormat),
    ],
)
def test_a_family_is_told_by_its_template(source: str, knows: bool, expected: type):
    assert type(tool_format(source, knows_tools=knows)) is expected


def test_mistrals_newer_form_is_told_by_its_mark():
    newer = tool_format("[TOOL_CALLS]name[ARGS]", knows_tools=True)
    assert newer.marks == ("[TOOL_CALLS]", "[ARGS]")


CONVERSATION = [
    {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c1", "type": "function",
         "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}},
        {"id": "c2", "type": "function", "function": {"name": "clock", "arguments": {}}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "Sunny"},
    {"role": "tool", "tool_call_id": "c2", "content": "noon"},
]  # fmt: skip


def test_the_generic_form_tells_of_tools_calls_and_results_in_plain_messages():
    prompt = GenericFormat().prompt(CONVERSATION, AUTO)
    assert prompt.tools == ()
    system, _, assistant, results = prompt.messages
    assert system["role"] == "system" and '"name": "get_weather"' in system["content"]
    assert assistant == {
        "role": "assistant",
        "content": '{"name": "get_weather", "arguments": {"city": "Rome"}}\n'
        '{"name": "clock", "arguments": {}}',
    }
    assert results == {
        "role": "user", "content": "Result of get_weather: Sunny\nResult of clock: noon"
    }  # fmt: skip


def test_the_generic_form_adds_to_a_system_message_and_says_nothing_without_tools():
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    told = GenericFormat().prompt(messages, AUTO).messages
    assert len(told) == 2 and told[0]["content"].startswith("Be brief.\n\nYou can call functions")
    assert GenericFormat().prompt(messages, None).messages == messages


def test_other_families_leave_the_conversation_to_their_template():
    prompt = HermesFormat().prompt(CONVERSATION, AUTO)
    assert prompt.messages == CONVERSATION
    assert prompt.tools == [WEATHER.described, CLOCK.described]


@pytest.mark.parametrize(
    "make, named",
    [
        (lambda: Tool.of("a b", None, {}), "a b"),
        (lambda: Tool.of("x", {"type": "array"}, {}), "no object"),
        (lambda: Tool.of("x", [], {}), "list"),
        (lambda: ToolUse(()), "0 tools"),
        (lambda: ToolUse((CLOCK, CLOCK)), "two tools"),
        (lambda: ToolUse((CLOCK,), only="y"), "no tool"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Callable[[], object], named: str):
    with pytest.raises(GrammarError, match=named):
        make()
