"""Takes an answer's text apart while it comes: reasoning, content, calls of tools.

Knows parsers; knows no format and no tags of its own.
"""

from __future__ import annotations

from edge_runtime.guidance.answer_parts import CallOpened, Content, Part
from edge_runtime.guidance.reasoning import ReasoningSplitter
from edge_runtime.guidance.tool_format import ToolCallParser


class AnswerParser:
    """One answer; with neither part everything is content.

    Args:
        reasoning: splits off what the model says to itself, first.
        tools: reads calls out of the rest.
    """

    def __init__(
        self, reasoning: ReasoningSplitter | None = None, tools: ToolCallParser | None = None
    ) -> None:
        self._reasoning = reasoning
        self._tools = tools
        self.has_calls = False
        """Whether a call was begun."""

    def feed(self, text: str) -> list[Part]:
        """The parts that this text makes certain."""
        if not text:
            return []
        if self._reasoning is None:
            return self._noted(self._without_calls(text))
        return self._through_tools(self._reasoning.feed(text))

    def finish(self) -> list[Part]:
        """What was held back, at the end."""
        parts = [] if self._reasoning is None else self._through_tools(self._reasoning.finish())
        return parts + (self._noted(self._tools.finish()) if self._tools is not None else [])

    def _through_tools(self, parts: list[Part]) -> list[Part]:
        through: list[Part] = []
        for part in parts:
            through += self._without_calls(part.text) if isinstance(part, Content) else [part]
        return self._noted(through)

    def _without_calls(self, text: str) -> list[Part]:
        return [Content(text)] if self._tools is None else self._tools.feed(text)

    def _noted(self, parts: list[Part]) -> list[Part]:
        self.has_calls = self.has_calls or any(isinstance(part, CallOpened) for part in parts)
        return parts
