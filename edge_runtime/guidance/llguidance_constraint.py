"""Constraints made of grammars by the llguidance package, compiled once and kept.

A grammar may come from anyone. Compiling is bounded by fuel, and runs in a thread of its own with
a deep stack and a time limit; what has been compiled is kept by its text, the least recently used
going first. Masks are bounded by fuel as well.

Source: llguidance, https://github.com/guidance-ai/llguidance. It is imported when the first grammar
is compiled. Knows the tokenizer; knows no engine and no request.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from edge_runtime.errors import GrammarError
from edge_runtime.guidance.constraint import Mask
from edge_runtime.guidance.grammar import (
    Grammar,
    ReasoningPrefix,
    first_line,
    grammar_text,
    not_installed,
)
from edge_runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

KEPT_GRAMMARS = 16
TIME_LIMIT_S = 10.0
_WAIT_S = 3 * TIME_LIMIT_S  # for the grammars of others
_STACK_BYTES = 32 * 1024**2

# Steps of the library's own, about a quarter of its defaults: what they allow takes under a second
# on a slow core to compile, and some 20 ms for a mask at worst. A lexer's state takes 1 to 2 KB.
_LEXER_FUEL = 250_000
_GRAMMAR_SIZE = 150_000
_LEXER_STATES = 30_000


class LlguidanceConstraint:
    """A :class:`edge_runtime.guidance.constraint.TokenConstraint` over one matcher."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def allowed_tokens(self) -> Mask:
        """As :meth:`TokenConstraint.allowed_tokens`; never None."""
        mask = np.frombuffer(self._matcher.compute_bitmask(), "<u4")
        if self._matcher.is_error():
            raise _failed(self._matcher)
        return mask

    def accept(self, token_id: int) -> None:
        """As :meth:`TokenConstraint.accept`."""
        if not self._matcher.consume_token(token_id):
            raise _failed(self._matcher)

    @property
    def is_complete(self) -> bool:
        """As :attr:`TokenConstraint.is_complete`."""
        return bool(self._matcher.is_stopped())


class GrammarCompiler:
    """Makes constraints for one model. Safe to use from several threads.

    Args:
        tokenizer: of the model; its whole vocabulary is read once, at the first grammar.
        vocabulary_size: V of the model's logits, which may be padded.
        end_tokens: the model's own; allowed where an answer may end.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, vocabulary_size: int, end_tokens: Sequence[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._vocabulary_size = vocabulary_size
        self._end_tokens = tuple(end_tokens)
        self._library_tokenizer: LLTokenizer | None = None
        self._kept: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()
        # One at a time: whatever is sent, compiling takes one core at most.
        self._compiling = threading.Lock()

    def constraint(
        self, grammar: Grammar, reasoning: ReasoningPrefix | None = None
    ) -> LlguidanceConstraint:
        """A fresh constraint. Takes milliseconds, or up to TIME_LIMIT_S for a large new grammar.

        Args:
            grammar: what the answer must match.
            reasoning: a span that comes before it, if any.

        Raises:
            GrammarError: llguidance is not installed, or the grammar is wrong, unsupported, too
                large, or matches nothing.
        """
        return self.constraint_of_text(grammar_text(grammar, reasoning))

    def constraint_of_text(self, text: str) -> LlguidanceConstraint:
        """As :meth:`constraint`, of llguidance's own text."""
        with self._lock:
            matcher = self._kept.get(text)
            if matcher is not None:
                self._kept.move_to_end(text)
                return LlguidanceConstraint(matcher.deep_copy())
        matcher = self._compile(text)
        with self._lock:
            self._kept[text] = matcher
            while len(self._kept) > KEPT_GRAMMARS:
                self._kept.popitem(last=False)
            return LlguidanceConstraint(matcher.deep_copy())

    def _compile(self, text: str) -> LLMatcher:
        if not self._compiling.acquire(timeout=_WAIT_S):
            raise GrammarError("other grammars are being compiled", hint="try again later")
        outcome: list[LLMatcher | BaseException] = []

        def work() -> None:
            try:
                outcome.append(_compiled(vocabulary, text))
            except BaseException as exc:
                outcome.append(exc)
            finally:
                self._compiling.release()

        try:
            vocabulary = self._vocabulary()
            thread = _thread_with_deep_stack(work)
        except BaseException:
            self._compiling.release()
            raise
        thread.join(TIME_LIMIT_S)
        if not outcome:
            # The library cannot be stopped. It goes on alone; its result is dropped.
            raise GrammarError(f"the grammar took longer than {TIME_LIMIT_S:.0f} s to compile")
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        return outcome[0]

    def _vocabulary(self) -> LLTokenizer:
        """The tokenizer as the library has it; read once, a second for 50 thousand tokens."""
        try:
            from llguidance import LLTokenizer, TokenizerWrapper
        except ImportError as exc:
            raise not_installed() from exc
        if self._library_tokenizer is None:
            vocabulary = _Vocabulary(self._tokenizer, self._vocabulary_size, self._end_tokens)
            self._library_tokenizer = LLTokenizer(
                TokenizerWrapper(vocabulary),
                n_vocab=self._vocabulary_size,
                eos_token=list(self._end_tokens) or None,
                # Slices (precomputed masks for parts of strings) would cost 12 MB for 50 thousand
                # tokens, and no share of a decode step that can be measured here.
                slices=[],
            )
        return self._library_tokenizer


def _compiled(vocabulary: LLTokenizer, text: str) -> LLMatcher:
    """A matcher at its beginning, which is only copied from then on.

    Raises:
        GrammarError: the library refuses the text, or nothing matches it.
    """
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(
        initial_lexer_fuel=_LEXER_FUEL,
        max_grammar_size=_GRAMMAR_SIZE,
        max_lexer_states=_LEXER_STATES,
        verbose_errors=False,
    )
    matcher = LLMatcher(vocabulary, text, log_level=0, limits=limits)
    if matcher.is_error():
        raise GrammarError(_in_our_words(matcher.get_error()))
    trial = matcher.deep_copy()
    trial.compute_bitmask()
    if "NoExtension" in trial.get_error():
        raise GrammarError("the grammar matches nothing")
    if trial.is_error():
        raise GrammarError(_in_our_words(trial.get_error()))
    return matcher


class _Vocabulary:
    """The tokenizer in the form that llguidance reads one: all bytes at once."""

    def __init__(self, tokenizer: Tokenizer, size: int, end_tokens: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        known = min(size, tokenizer.vocabulary_size)
        self.bos_token_id = None
        self.special_token_ids = [i for i in range(known) if tokenizer.is_special(i)]
        # Where a model has no end token, the first special one stands in: something must.
        self.eos_token_id = next(iter((*end_tokens, *self.special_token_ids)), 0)
        special = set(self.special_token_ids)
        self.tokens = [
            tokenizer.id_to_token(i).encode() if i in special else tokenizer.token_bytes(i)
            for i in range(known)
        ]

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8", errors="ignore")
        return self._tokenizer.encode_plain(text)


def _thread_with_deep_stack(work: Callable[[], None]) -> threading.Thread:
    """Start a thread whose stack is deep on every system: the default ranges from 128 KB to 8 MB."""
    before = threading.stack_size(_STACK_BYTES)
    try:
        thread = threading.Thread(target=work, name="grammar", daemon=True)
        thread.start()
    finally:
        threading.stack_size(before)
    return thread


def _failed(matcher: LLMatcher) -> GrammarError:
    return GrammarError(
        f"the answer cannot go on within its grammar: {first_line(matcher.get_error())}"
    )


def _in_our_words(complaint: str) -> str:
    """The library's complaint, with what is unsupported named."""
    line = first_line(complaint)
    if "nimplemented keys:" in line:
        keys = line.split("nimplemented keys:", 1)[1].strip().strip("[]").replace('"', "")
        return f"the schema uses {keys}, which is not supported"
    if "regex parse error" in line:
        lines = [part.strip() for part in complaint.splitlines()]
        reason = next((part[7:] for part in lines if part.startswith("error: ")), line)
        return f"a regex cannot be read: {reason}"
    return f"the grammar cannot be compiled: {line}"
