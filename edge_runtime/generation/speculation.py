"""Drafts without a second model: what followed the last time the text said the same.

A text that quotes, edits or repeats says again what stands in it already. :class:`PromptLookup`
finds the longest recent place where the text's end occurs and proposes what followed there; the
engine evaluates the draft together with the token that is due, in one step, and keeps what it would
have chosen anyway. How many tokens are worth drafting follows from how often such matches were
right so far and from :class:`StepCost`, what a longer step takes on this machine.

Source of the idea: Saxena 2023, prompt lookup decoding. The index is deflate's (RFC 1951, section
4): chains of the places with the same two tokens, newest first.

Knows tokens and seconds; knows no engine, no logits and no random numbers.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Sequence

MAX_DRAFT_TOKENS = 8
"""Most tokens in a draft. From here a step's cost grows as fast as what a longer one can win."""

# How many places with the same two tokens are compared, and how far back: both bound the time that
# a token takes, and a longer match is hardly ever more right.
_COMPARED_PLACES = 8
_COMPARED_TOKENS = 16
# Expected gain below which a draft is not worth the risk that the estimates are off.
_LEAST_GAIN = 1.05
# How often a match's next token is right before anything is known, by the match's length: two
# tokens, to 4, to 8, longer. Each counts as so many observations, and old ones fade.
_PRIOR_RATES = (0.2, 0.35, 0.6, 0.85)
_PRIOR_WEIGHT = 6.0
_FADE = 0.96


class PromptLookup:
    """Drafts for one sequence, from its own tokens.

    Also where no draft is used, each new token tells whether a draft of it would have been right:
    drafting stops where it does not pay and starts again where it does, at no cost.

    Args:
        tokens: the sequence's tokens, prompt and answer; followed as the list grows at its end.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self._newest: dict[int, int] = {}
        # At i: the next older place with the same two tokens before it as place i; 0 is none.
        self._older = array("i", [0, 0])
        self._seen = 0
        self._place = 0  # the token that the match says comes next; 0 without a match
        self._length = 0  # tokens before it that equal the text's end
        self._hits = [rate * _PRIOR_WEIGHT for rate in _PRIOR_RATES]
        self._trials = [_PRIOR_WEIGHT] * len(_PRIOR_RATES)
        self._extend_index(len(tokens))
        self._find()

    def draft(self, *, most: int, cost: StepCost) -> list[int]:
        """The tokens worth drafting now, at most ``most``; none where no draft would pay."""
        self._catch_up()
        if not self._place:
            return []
        count = self._worthwhile(min(most, MAX_DRAFT_TOKENS), cost.per_draft)
        tokens, place, end = self._tokens, self._place, len(self._tokens)
        drafted: list[int] = []
        for at in range(place, place + count):
            # A match that reaches the end goes on into the draft itself: a period.
            drafted.append(tokens[at] if at < end else drafted[at - end])
        return drafted

    def _worthwhile(self, most: int, per_draft: float) -> int:
        best, best_gain = 0, _LEAST_GAIN
        reached, expected = 1.0, 1.0
        for count in range(1, most + 1):
            kind = _kind(self._length + count - 1)
            reached *= self._hits[kind] / self._trials[kind]
            expected += reached
            gain = expected / (1 + count * per_draft)
            if gain > best_gain:
                best, best_gain = count, gain
        return best

    def _catch_up(self) -> None:
        tokens = self._tokens
        for position in range(self._seen, len(tokens)):
            right = False
            if self._place:
                right = tokens[self._place] == tokens[position]
                kind = _kind(self._length)
                self._hits[kind] = self._hits[kind] * _FADE + right
                self._trials[kind] = self._trials[kind] * _FADE + 1
            self._extend_index(position + 1)
            if right:
                self._place += 1
                self._length += 1
            else:
                self._find()

    def _extend_index(self, end: int) -> None:
        """Note the places up to ``end``, by the two tokens before each."""
        tokens, newest, older = self._tokens, self._newest, self._older
        for place in range(max(2, self._seen), end):
            pair = tokens[place - 2] << 32 | tokens[place - 1]
            older.append(newest.get(pair, 0))
            newest[pair] = place
        self._seen = end

    def _find(self) -> None:
        """Look for the longest match of the text's end, the newest among equals."""
        tokens, end = self._tokens, self._seen
        self._place = self._length = 0
        if end < 2:
            return
        place = self._newest.get(tokens[end - 2] << 32 | tokens[end - 1], 0)
        for _ in range(_COMPARED_PLACES):
            if not place:
                return
            length = 2
            longest = min(place, _COMPARED_TOKENS)
            while length < longest and tokens[place - length - 1] == tokens[end - length - 1]:
                length += 1
            if length > self._length:
                self._place, self._length = place, length
                if length == _COMPARED_TOKENS:
                    return
            place = self._older[place]


def _kind(length: int) -> int:
    """The class of a match: two tokens, to 4, to 8, longer."""
    return min((length - 1).bit_length() - 1, len(_PRIOR_RATES) - 1)


class StepCost:
    """What each drafted token adds to a step, as a share of a step of one token; measured.

    Kept to a few levels, each twice the one below, and slow to leave one: with integer activations
    a step of several tokens rounds differently from single ones, and an answer should depend on the
    clock as little as may be.
    """

    _PRIOR = 3 / 16
    _SAMPLES = 9
    # A wrong impression, say from a moment in which the machine was busy, must not last: without
    # drafts nothing would correct it. So many steps of one token make one sample forgotten.
    _FORGET_AFTER = 32
    _LEVELS = (-1, 4)  # powers of two, times the prior
    _LEAVES_LEVEL_AT = 1.6

    def __init__(self) -> None:
        self._single_s: deque[float] = deque(maxlen=self._SAMPLES)
        self._added: deque[float] = deque(maxlen=self._SAMPLES)
        self._singles_since = 0
        self.per_draft = self._PRIOR
        """Cost of a drafted token in steps of one token."""

    def observe(self, *, drafted: int, seconds: float) -> None:
        """Count a step of one sequence with so many drafted tokens."""
        if not drafted:
            self._single_s.append(seconds)
            self._singles_since += 1
            if self._singles_since >= self._FORGET_AFTER and self._added:
                self._added.popleft()
                self._update()
        elif len(self._single_s) == self._SAMPLES:
            single_s = _median(self._single_s)
            if single_s > 0:
                self._added.append((seconds / single_s - 1) / drafted)
                self._update()

    def _update(self) -> None:
        self._singles_since = 0
        # The prior fills the window, so that no single step decides.
        missing = self._SAMPLES - len(self._added)
        measured = max(_median([*self._added, *[self._PRIOR] * missing]), 1e-6)
        change = max(measured / self.per_draft, self.per_draft / measured)
        if change > self._LEAVES_LEVEL_AT:
            lowest, highest = self._LEVELS
            level = min(max(round(math.log2(measured / self._PRIOR)), lowest), highest)
            self.per_draft = self._PRIOR * 2.0**level


def _median(values: Sequence[float] | deque[float]) -> float:
    return sorted(values)[len(values) // 2]
