"""Turns one sequence's tokens into pieces of text: whole characters, cut at stop strings.

Knows the tokenizer and stop strings; knows no scheduler and no array.
"""

from __future__ import annotations

from edge_runtime.generation.params import SamplingParams
from edge_runtime.text.detokenizer import StreamingDetokenizer
from edge_runtime.text.stop_strings import StopStringMatcher
from edge_runtime.text.tokenizer import Tokenizer


class TextStream:
    """The text of one answer, as it grows.

    Args:
        tokenizer: gives the bytes of a token.
        params: its stop strings, and the special tokens that it shows.
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._detokenizer = StreamingDetokenizer(tokenizer, shown=params.shown_token_ids)
        self._matcher = StopStringMatcher(params.stop)

    @property
    def stopped(self) -> bool:
        """Whether a stop string was met; the text ends before it."""
        return self._matcher.matched is not None

    def add(self, token_id: int) -> str:
        """The text that this token makes certain; it may be empty."""
        return self._matcher.feed(self._detokenizer.add(token_id))

    def flush(self) -> str:
        """What was held back, at the end of generation."""
        tail = self._matcher.feed(self._detokenizer.flush())
        return tail + self._matcher.flush()
