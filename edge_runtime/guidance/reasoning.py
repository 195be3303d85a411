"""Reasoning spans: found in a template, split off an answer, and held to a budget of tokens.

A span is between two tags at the beginning of an answer; where the prompt ends with the opening
tag, the answer begins inside it. Tags later in an answer are content. Knows no grammar.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from edge_runtime.guidance.answer_parts import Content, Part, Reasoning
from edge_runtime.guidance.constraint import Mask, TokenConstraint, mask_of
from edge_runtime.guidance.marks import MarkFinder
from edge_runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class ReasoningTags:
    """What opens and closes a model's reasoning."""

    opening: str
    closing: str


_KNOWN_TAGS = (
    ReasoningTags("<think>", "</think>"),  # DeepSeek R1, Qwen 3, SmolLM3 and most others
    ReasoningTags("[THINK]", "[/THINK]"),  # Magistral
    ReasoningTags("<seed:think>", "</seed:think>"),
)


def reasoning_tags(template_source: str) -> ReasoningTags | None:
    """The tags that a chat template knows, or None where it knows none."""
    for tags in _KNOWN_TAGS:
        if tags.closing in template_source or tags.opening in template_source:
            return tags
    return None


def opened_by(prompt_end: str, tags: ReasoningTags) -> bool:
    """Whether a prompt leaves the span open: the answer then begins inside it."""
    return prompt_end.rstrip().endswith(tags.opening)


def closed_by(prompt_end: str, tags: ReasoningTags) -> bool:
    """Whether a prompt brings a closed span: the answer then comes without any."""
    return prompt_end.rstrip().endswith(tags.closing)


class _Where(Enum):
    BEFORE = auto()
    INSIDE = auto()
    AFTER = auto()


class ReasoningSplitter:
    """Splits an answer's text, which comes in pieces, into reasoning and what follows it.

    Args:
        tags: of the model.
        opened: whether the prompt opened the span.
    """

    def __init__(self, tags: ReasoningTags, *, opened: bool) -> None:
        self._tags = tags
        self._where = _Where.INSIDE if opened else _Where.BEFORE
        self._held = ""
        self._closing = MarkFinder(tags.closing)
        self._begins = True  # blanks at the beginning of a span, or after it, are not its text

    def feed(self, text: str) -> list[Part]:
        """The parts that this text makes certain; what is not reasoning comes as content."""
        parts: list[Part] = []
        if self._where is _Where.BEFORE:
            text = self._before(text)
        if self._where is _Where.INSIDE and text:
            inside, after = self._closing.feed(text)
            inside = self._without_first_blanks(inside)
            if inside:
                parts.append(Reasoning(inside))
            text = ""
            if after is not None:
                self._where, self._begins, text = _Where.AFTER, True, after
        if self._where is _Where.AFTER:
            text = self._without_first_blanks(text)
            if text:
                parts.append(Content(text))
        return parts

    def finish(self) -> list[Part]:
        """What was held back, at the end."""
        if self._where is _Where.INSIDE:
            rest = self._without_first_blanks(self._closing.flush())
            return [Reasoning(rest)] if rest else []
        held, self._held = self._held, ""
        return [Content(held)] if held else []

    def _before(self, text: str) -> str:
        """Wait until it is known whether a span begins."""
        self._held += text
        bare = self._held.lstrip()
        opening = self._tags.opening
        if bare.startswith(opening):
            self._where, self._held = _Where.INSIDE, ""
            return bare[len(opening) :]
        if opening.startswith(bare):
            return ""
        text, self._held = self._held, ""
        self._where, self._begins = _Where.AFTER, False
        return text

    def _without_first_blanks(self, text: str) -> str:
        if self._begins:
            text = text.lstrip()
            self._begins = not text
        return text


class ReasoningBudget:
    """A :class:`edge_runtime.guidance.constraint.TokenConstraint` that closes a long span.

    Until the budget is used up nothing is forbidden; then the closing tag's tokens come, one after
    the other. What the rest of the answer must match, ``inner`` says, which sees every token.

    Args:
        inner: None where the answer may be anything.
        tags: of the model.
        opened: whether the prompt opened the span.
        budget: tokens between the tags.
        tokenizer, vocabulary_size: of the model.
    """

    def __init__(
        self,
        inner: TokenConstraint | None,
        *,
        tags: ReasoningTags,
        opened: bool,
        budget: int,
        tokenizer: Tokenizer,
        vocabulary_size: int,
    ) -> None:
        self._inner = inner
        self._budget = budget
        self._text_of = tokenizer
        self._vocabulary_size = vocabulary_size
        self._closing_ids: Sequence[int] = tokenizer.encode(tags.closing)
        self._splitter = _TagWatcher(tags, opened=opened)
        self._forced = 0
        self._used = 0

    def allowed_tokens(self) -> Mask | None:
        """As :meth:`TokenConstraint.allowed_tokens`."""
        if self._is_closing:
            return mask_of([self._closing_ids[self._forced]], self._vocabulary_size)
        return None if self._inner is None else self._inner.allowed_tokens()

    def accept(self, token_id: int) -> None:
        """As :meth:`TokenConstraint.accept`."""
        if self._is_closing:
            self._forced += 1
        elif self._splitter.is_inside:
            self._used += 1
        tokenizer = self._text_of
        special = tokenizer.is_special(token_id)
        name = tokenizer.id_to_token(token_id).encode() if special else b""
        self._splitter.add(name or tokenizer.token_bytes(token_id))
        if self._inner is not None:
            self._inner.accept(token_id)

    @property
    def is_complete(self) -> bool:
        """As :attr:`TokenConstraint.is_complete`."""
        return self._inner is not None and self._inner.is_complete

    @property
    def _is_closing(self) -> bool:
        return self._splitter.is_inside and self._used >= self._budget


class _TagWatcher:
    """Follows the bytes of an answer to know whether it is inside its reasoning span."""

    def __init__(self, tags: ReasoningTags, *, opened: bool) -> None:
        self._opening, self._closing = tags.opening.encode(), tags.closing.encode()
        self._where = _Where.INSIDE if opened else _Where.BEFORE
        self._tail = b""

    @property
    def is_inside(self) -> bool:
        return self._where is _Where.INSIDE

    def add(self, text: bytes) -> None:
        if self._where is _Where.BEFORE:
            self._tail = (self._tail + text).lstrip()
            if self._tail.startswith(self._opening):
                self._where, text = _Where.INSIDE, self._tail[len(self._opening) :]
                self._tail = b""
            elif not self._opening.startswith(self._tail):
                self._where = _Where.AFTER
        if self._where is _Where.INSIDE:
            seen = self._tail + text
            self._tail = seen[-len(self._closing) + 1 :]
            if self._closing in seen:
                self._where = _Where.AFTER
