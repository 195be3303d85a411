"""From what a request says of its answer to a prompt, a constraint and a parser for one model.

Here the parts of this room meet an engine: the template's family, its reasoning tags, and the
grammar over both. Knows no wire form.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from edge_runtime.errors import GrammarError
from edge_runtime.generation.params import SamplingParams
from edge_runtime.guidance.answer_parser import AnswerParser
from edge_runtime.guidance.constraint import TokenConstraint
from edge_runtime.guidance.grammar import (
    Grammar,
    ReasoningPrefix,
    grammar_text,
    literal,
    rules_after_reasoning,
    styled,
    text_rule,
)
from edge_runtime.guidance.reasoning import (
    ReasoningBudget,
    ReasoningSplitter,
    ReasoningTags,
    closed_by,
    opened_by,
    reasoning_tags,
)
from edge_runtime.guidance.tool_families import tool_format
from edge_runtime.guidance.tool_format import ToolFormat
from edge_runtime.guidance.tools import ToolUse
from edge_runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from edge_runtime.engine.engine import Engine

_PROMPT_END_TOKENS = 32  # a tag and blanks, even spelt in single characters


@dataclass(frozen=True)
class AnswerForm:
    """What a request says of the form of its answer.

    Args:
        grammar: what it must match; not together with tools.
        tools: what may be called.
        reasoning_budget: tokens that may be spent on reasoning; None leaves it to the model.

    Raises:
        GrammarError: both a grammar and tools, or a negative budget.
    """

    grammar: Grammar | None = None
    tools: ToolUse | None = None
    reasoning_budget: int | None = None

    def __post_init__(self) -> None:
        if self.grammar is not None and self.tools is not None:
            raise GrammarError("an answer cannot both have a form and call tools")
        if self.reasoning_budget is not None and self.reasoning_budget < 0:
            raise GrammarError(f"the reasoning budget is {self.reasoning_budget}; 0 is the least")


ANY_FORM = AnswerForm()


@dataclass(frozen=True)
class AnswerPlan:
    """A request as the engine takes it, and how its answer is read.

    Args:
        prompt_ids: the prompt.
        params: with the tokens that must show in the text.
        new_constraint: a constraint for one answer; None where it may be anything.
        new_parser: takes one answer apart.
    """

    prompt_ids: list[int]
    params: SamplingParams
    new_constraint: Callable[[], TokenConstraint | None]
    new_parser: Callable[[], AnswerParser]


def plan_text(
    engine: Engine, prompt_ids: list[int], params: SamplingParams, grammar: Grammar | None
) -> AnswerPlan:
    """A plan for a text that goes on without a chat template.

    Raises:
        GrammarError: the grammar cannot be kept, or llguidance is not installed.
    """
    if grammar is None:
        return AnswerPlan(prompt_ids, params, lambda: None, AnswerParser)
    new_constraint = _compiled(engine, grammar_text(grammar))
    return AnswerPlan(prompt_ids, params, new_constraint, AnswerParser)


def plan_chat(
    engine: Engine,
    messages: Sequence[Mapping[str, Any]],
    params: SamplingParams,
    form: AnswerForm = ANY_FORM,
    *,
    template_arguments: Mapping[str, Any] | None = None,
) -> AnswerPlan:
    """A plan for an answer in a conversation.

    Args:
        engine: of the model.
        messages: oldest first, with calls and results of tools as OpenAI's API has them.
        params: how to sample.
        form: what the answer must look like.
        template_arguments: further variables of the template, such as ``enable_thinking``.

    Raises:
        ChatTemplateError: the model has no template, or it refuses the conversation.
        GrammarError: the form cannot be kept, or llguidance is not installed.
        InvalidParameterError, TokenizerError: as :meth:`Engine.encode_chat`.
    """
    template = engine.chat_template
    source = "" if template is None else template.source
    family = tool_format(source, knows_tools=template is not None and template.knows_tools)
    prompt = family.prompt(messages, form.tools)
    ids = engine.encode_chat(
        prompt.messages, tools=prompt.tools or None, template_arguments=template_arguments
    )
    span = _span(engine.tokenizer, source, ids)
    text = _grammar_text(engine.tokenizer, form, family, span)
    new_inner: Callable[[], TokenConstraint | None]
    new_inner = (lambda: None) if text is None else _compiled(engine, text)
    shown = _shown_tokens(engine.tokenizer, family if form.tools else None, span)
    if shown:
        params = replace(params, shown_token_ids=shown)

    def new_constraint() -> TokenConstraint | None:
        inner = new_inner()
        if span is None or form.reasoning_budget is None:
            return inner
        return ReasoningBudget(
            inner,
            tags=span.tags,
            opened=span.opened,
            budget=form.reasoning_budget,
            tokenizer=engine.tokenizer,
            vocabulary_size=engine.manifest.dimensions.vocabulary_size,
        )

    def new_parser() -> AnswerParser:
        splitter = None if span is None else ReasoningSplitter(span.tags, opened=span.opened)
        return AnswerParser(splitter, None if form.tools is None else family.parser())

    return AnswerPlan(ids, params, new_constraint, new_parser)


@dataclass(frozen=True)
class _Span:
    """The reasoning span that an answer may begin with, or begins inside of."""

    tags: ReasoningTags
    opened: bool


def _span(tokenizer: Tokenizer, template_source: str, prompt_ids: Sequence[int]) -> _Span | None:
    tags = reasoning_tags(template_source)
    if tags is None:
        return None
    end = tokenizer.decode(prompt_ids[-_PROMPT_END_TOKENS:], skip_special=False)
    return None if closed_by(end, tags) else _Span(tags, opened_by(end, tags))


def _grammar_text(
    tokenizer: Tokenizer, form: AnswerForm, family: ToolFormat, span: _Span | None
) -> str | None:
    def term(mark: str) -> str:
        token = _special_id(tokenizer, mark)
        return literal(mark) if token is None else f"<[{token}]>"

    prefix = None
    if span is not None:
        prefix = ReasoningPrefix(
            opening="" if span.opened else term(span.tags.opening),
            opening_text="" if span.opened else span.tags.opening,
            closing=span.tags.closing,
            closing_token_id=_special_id(tokenizer, span.tags.closing),
        )
    if form.tools is None:
        return None if form.grammar is None else grammar_text(form.grammar, prefix)
    rules = family.rules(form.tools, term)
    start = "start: answer\n" if prefix is None else rules_after_reasoning("answer", prefix)
    arguments = [
        {"name": f"args{i}", "json_schema": styled(tool.parameters)}
        for i, tool in enumerate(form.tools.callable)
    ]
    top = {"lark_grammar": start + rules + text_rule(prefix)}
    return json.dumps({"grammars": [top, *arguments]}, ensure_ascii=False)


def _compiled(engine: Engine, text: str) -> Callable[[], TokenConstraint]:
    """Compile now, so that what is wrong is told before anything is queued; the first is kept."""
    first: list[TokenConstraint] = [engine.grammars.constraint_of_text(text)]
    return lambda: first.pop() if first else engine.grammars.constraint_of_text(text)


def _special_id(tokenizer: Tokenizer, mark: str) -> int | None:
    token = tokenizer.token_to_id(mark)
    return token if token is not None and tokenizer.is_special(token) else None


def _shown_tokens(
    tokenizer: Tokenizer, family: ToolFormat | None, span: _Span | None
) -> tuple[int, ...]:
    """Special tokens that the parsers must see by name."""
    marks = () if family is None else family.marks
    if span is not None:
        marks = (*marks, span.tags.opening, span.tags.closing)
    ids = [_special_id(tokenizer, mark) for mark in marks]
    return tuple(token for token in ids if token is not None)
