"""A request's form meets a template: what the engine then says, and how it is read."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support.scripted_engine import END, GREEDY, TOKENIZER, make_engine

from edge_runtime.engine.request import Delta
from edge_runtime.errors import ChatTemplateError, GrammarError
from edge_runtime.generation.params import SamplingParams
from edge_runtime.guidance.answer_parts import Message, message_of
from edge_runtime.guidance.grammar import JsonSchema, Regex
from edge_runtime.guidance.plan import AnswerForm, plan_chat, plan_text
from edge_runtime.guidance.tools import Tool, ToolChoice, ToolUse
from edge_runtime.text.chat_template import ChatTemplate

PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
HERMES = PLAIN + "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}"
THINKING = PLAIN + "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
OPENED = PLAIN + "<think>\n"
MESSAGES = [{"role": "user", "content": "Hi"}]
CLOCK = Tool.of(
    "clock",
    {"properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"]},
    {"type": "function", "function": {"name": "clock"}},
)
CALL = '<tool_call>\n{"name": "clock", "arguments": {"zone": "CET"}}\n</tool_call>'


def ask(
    template: str,
    wanted: str,
    form: AnswerForm,
    params: SamplingParams = GREEDY,
    **arguments: object,
) -> tuple[Message, str]:
    """The answer of a model that wants to say ``wanted``, and the prompt that it was given."""
    prompt_length = 0

    def script(seen: object) -> int:
        said = len(seen) - prompt_length  # type: ignore[arg-type]
        return ids[said] if said < len(ids) else END

    ids = TOKENIZER.encode(wanted)
    engine, _ = make_engine(
        script, context=4000, chat_template=ChatTemplate(template, special_tokens={})
    )
    plan = plan_chat(engine, MESSAGES, params, form, template_arguments=arguments)
    prompt_length = len(plan.prompt_ids)
    deltas: list[Delta] = []
    engine.submit(
        plan.prompt_ids,
        plan.params,
        emit=deltas.append,
        constraint=plan.new_constraint(),  # type: ignore[arg-type]
    )
    while engine.has_work:
        engine.step()
    parser = plan.new_parser()
    parts = [part for delta in deltas for part in parser.feed(delta.text)] + parser.finish()
    return message_of(parts), TOKENIZER.decode(plan.prompt_ids)


def test_without_a_form_an_answer_is_its_text():
    assert ask(PLAIN, "Hello <tool_call>", AnswerForm())[0] == Message("Hello <tool_call>", "", ())


def test_reasoning_is_split_off_unasked():
    assert ask(THINKING, "<think>Hm</think>\n\nYes", AnswerForm())[0] == Message("Yes", "Hm", ())
    assert ask(OPENED, "Hm\n</think>\n\nYes", AnswerForm())[0] == Message("Yes", "Hm", ())


def test_reasoning_that_the_template_switched_off_is_not_looked_for():
    message, prompt = ask(THINKING, "<think>Hm", AnswerForm(), enable_thinking=False)
    assert prompt.endswith("</think>\n\n")
    assert message == Message("<think>Hm", "", ())


@pytest.mark.parametrize("template", [THINKING, OPENED])
def test_a_budget_ends_reasoning(template: str):
    wanted = ("<think>" if template == THINKING else "") + "a" * 50
    params = SamplingParams(temperature=0.0, max_tokens=60)
    message, _ = ask(template, wanted, AnswerForm(reasoning_budget=4), params)
    assert message.reasoning == "aaaa"
    assert message.content.startswith("aaa")


def test_a_grammar_holds_after_reasoning():
    pytest.importorskip("llguidance")
    form = AnswerForm(grammar=Regex("yes|no"))
    assert ask(PLAIN, "perhaps", form)[0].content in ("yes", "no")
    assert ask(OPENED, "Hm {\n</think>\n\nno", form)[0] == Message("no", "Hm {", ())
    assert ask(THINKING, "<think>Hm</think>no", form)[0] == Message("no", "Hm", ())
    assert ask(THINKING, "no", form)[0] == Message("no", "", ())


def test_a_budget_and_a_schema_hold_together():
    pytest.importorskip("llguidance")
    schema = {"properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    schema |= {"type": "object", "additionalProperties": False}
    form = AnswerForm(grammar=JsonSchema.of(schema), reasoning_budget=3)
    message, _ = ask(
        OPENED, "aaaaaaaaaaaaaaaaa", form, SamplingParams(temperature=0, max_tokens=80)
    )
    assert message.reasoning == "aaa"
    assert json.loads(message.content)["a"] in (1, 2)


def test_a_call_is_read_and_its_arguments_fit_the_schema():
    pytest.importorskip("llguidance")
    form = AnswerForm(tools=ToolUse((CLOCK,)))
    message, prompt = ask(HERMES, f"Let me see. {CALL}", form)
    assert '"name": "clock"' in prompt
    assert message.content == "Let me see."
    assert [(c.name, json.loads(c.arguments)) for c in message.tool_calls] == [
        ("clock", {"zone": "CET"})
    ]
    forced = ask(HERMES, CALL.replace("CET", "PST"), form)[0]
    assert json.loads(forced.tool_calls[0].arguments)["zone"] in ("UTC", "CET")


def test_a_required_call_comes_whatever_the_model_wants():
    pytest.importorskip("llguidance")
    use = ToolUse((CLOCK,), choice=ToolChoice.REQUIRED, parallel=False)
    form = AnswerForm(tools=use, reasoning_budget=3)
    for template in (HERMES, PLAIN, HERMES + "{# <think> #}"):
        message, prompt = ask(template, "I would rather not.", form)
        assert [c.name for c in message.tool_calls] == ["clock"], template
        assert message.content == ""
        assert "clock" in prompt


def test_reasoning_may_mention_calls_and_is_followed_by_real_ones():
    pytest.importorskip("llguidance")
    form = AnswerForm(tools=ToolUse((CLOCK,)))
    template = HERMES + "{# <think> #}"
    message, _ = ask(template, f"<think>a <tool_call> perhaps</think>\n{CALL}", form)
    assert message.reasoning == "a <tool_call> perhaps"
    assert [c.name for c in message.tool_calls] == ["clock"]
    assert ask(template, "Plain.", form)[0] == Message("Plain.", "", ())


def test_special_tokens_that_parsers_need_are_shown():
    engine, _ = make_engine(
        lambda seen: END,
        chat_template=ChatTemplate("{{ tools }}[TOOL_CALLS]", special_tokens={}),
    )
    assert plan_chat(engine, MESSAGES, GREEDY).params.shown_token_ids == ()
    tokenizer = engine.tokenizer
    engine.tokenizer = type(tokenizer)(("<|bos|>", "<|end|>", "[TOOL_CALLS]"))
    dimensions = replace(engine.manifest.dimensions, vocabulary_size=259)
    engine.manifest = replace(engine.manifest, dimensions=dimensions)
    pytest.importorskip("llguidance")
    plan = plan_chat(engine, MESSAGES, GREEDY, AnswerForm(tools=ToolUse((CLOCK,))))
    assert plan.params.shown_token_ids == (258,)


def test_a_text_without_a_template_takes_a_grammar():
    engine, _ = make_engine(lambda seen: END)
    assert plan_text(engine, [1], GREEDY, None).new_constraint() is None
    pytest.importorskip("llguidance")
    plan = plan_text(engine, [1], GREEDY, Regex("a"))
    first, second = plan.new_constraint(), plan.new_constraint()
    assert first is not second and first is not None


def test_what_cannot_be_combined_or_kept_is_refused_before_anything_is_queued():
    with pytest.raises(GrammarError, match="both"):
        AnswerForm(grammar=Regex("a"), tools=ToolUse((CLOCK,)))
    with pytest.raises(GrammarError, match="budget"):
        AnswerForm(reasoning_budget=-1)
    engine, _ = make_engine(lambda seen: END)
    with pytest.raises(ChatTemplateError):
        plan_chat(engine, MESSAGES, GREEDY)
    pytest.importorskip("llguidance")
    with pytest.raises(GrammarError, match="regex"):
        plan_text(engine, [1], GREEDY, Regex("("))
