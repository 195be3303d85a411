"""Beam search: the likeliest answers as a whole, not token by token.

Keeps the ``width`` likeliest beginnings of an answer and extends them together. What ends is scored
by its log probability over its length to the power of the length penalty (Wu et al. 2016,
arXiv:1609.08144, section 7, in the simpler form that Hugging Face transformers uses). Exact within
the beam: without early stopping it ends only when nothing that runs could still be among the best.

Knows logits and scores; knows no engine, no cache and no text.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_runtime.errors import InvalidParameterError, RunError
from edge_runtime.generation.distribution import ids_of_highest


@dataclass(frozen=True)
class BeamParams:
    """How answers are searched for.

    Args:
        width: beginnings that are kept.
        max_tokens: most tokens of an answer, its end token among them; None is until the context
            is full.
        length_penalty: above 0 longer answers score better, below 0 shorter ones; 0 compares plain
            log probabilities.
        early_stopping: end with the first ``width`` answers that have ended, instead of going on
            while a longer one may still score better.

    Raises:
        InvalidParameterError: a number that cannot be.
    """

    width: int = 4
    max_tokens: int | None = None
    length_penalty: float = 1.0
    early_stopping: bool = False

    def __post_init__(self) -> None:
        if self.width < 1:
            raise InvalidParameterError(f"width is {self.width}; it must be 1 or more")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InvalidParameterError(f"max_tokens is {self.max_tokens}; it must be 1 or more")
        if not np.isfinite(self.length_penalty):
            raise InvalidParameterError(f"length_penalty is {self.length_penalty}")


@dataclass(frozen=True)
class Beam:
    """The beginning of an answer, and its natural-log probability after the prompt."""

    tokens: tuple[int, ...] = ()
    log_probability: float = 0.0


@dataclass(frozen=True)
class Hypothesis:
    """A whole answer. ``ended`` tells whether by an end token, its last, or for want of room."""

    tokens: tuple[int, ...]
    log_probability: float
    score: float
    ended: bool


class BeamSearch:
    """One search; :attr:`beams` are what is to be evaluated next.

    Args:
        params: how to search; its ``max_tokens`` is ignored.
        end_tokens: token ids that end an answer.
        max_tokens: most tokens of an answer.
    """

    def __init__(self, params: BeamParams, *, end_tokens: Collection[int], max_tokens: int) -> None:
        self._params = params
        self._end_tokens = frozenset(end_tokens)
        self._max_tokens = max_tokens
        self._ended: list[Hypothesis] = []
        self.beams: list[Beam] = [Beam()]
        """At most ``width``, the likeliest first; empty once the search is over."""

    def advance(self, logits: NDArray[np.float32]) -> list[int]:
        """Extend the beams by a token each.

        Args:
            logits: (beams, V) float32, after each beam; only read.

        Returns:
            For each of the new beams, which of the old ones it goes on from.

        Raises:
            RunError: the logits are numerically broken.
        """
        extended = self._likeliest(logits)
        parents: list[int] = []
        beams: list[Beam] = []
        for rank, (log_probability, parent, token) in enumerate(extended):
            tokens = (*self.beams[parent].tokens, token)
            if token in self._end_tokens:
                # One that others outrank would only have ended because it ended.
                if rank < self._params.width:
                    self._end(tokens, log_probability, ended=True)
            elif len(beams) < self._params.width:
                beams.append(Beam(tokens, log_probability))
                parents.append(parent)
        if beams and len(beams[0].tokens) >= self._max_tokens:
            for beam in beams:
                self._end(beam.tokens, beam.log_probability, ended=False)
            beams, parents = [], []
        self.beams = beams
        if self._is_over():
            self.beams, parents = [], []
        return parents

    def hypotheses(self) -> list[Hypothesis]:
        """The answers so far, at most ``width``, the best first."""
        return list(self._ended)

    def _likeliest(self, logits: NDArray[np.float32]) -> list[tuple[float, int, int]]:
        """Log probability, beam and token of enough extensions, the likeliest first.

        Enough for ``width`` of them to go on where all that can end are among them.
        """
        count = self._params.width + len(self._end_tokens)
        extended: list[tuple[float, int, int]] = []
        for parent, (beam, row) in enumerate(zip(self.beams, logits, strict=True)):
            highest = row.max()
            if not np.isfinite(highest):
                raise RunError(f"the highest of the model's logits is {highest}")
            with np.errstate(under="ignore"):
                total = np.exp(row - highest).sum(dtype=np.float64)
            offset = beam.log_probability - float(highest) - float(np.log(total))
            for token in ids_of_highest(row, count).tolist():
                if row[token] > -np.inf:
                    extended.append((float(row[token]) + offset, parent, token))
        extended.sort(key=lambda e: (-e[0], e[1], e[2]))
        return extended

    def _end(self, tokens: tuple[int, ...], log_probability: float, *, ended: bool) -> None:
        score = self._score(log_probability, len(tokens))
        self._ended.append(Hypothesis(tokens, log_probability, score, ended))
        self._ended.sort(key=lambda h: -h.score)
        del self._ended[self._params.width :]

    def _score(self, log_probability: float, length: int) -> float:
        return float(log_probability / length**self._params.length_penalty)

    def _is_over(self) -> bool:
        if not self.beams:
            return True
        if len(self._ended) < self._params.width:
            return False
        if self._params.early_stopping:
            return True
        # Log probabilities only fall: the best that a beam can come to is at the length that is
        # kindest to it.
        length = len(self.beams[0].tokens) + 1
        if self._params.length_penalty > 0:
            length = self._max_tokens
        best = self._score(self.beams[0].log_probability, length)
        return best <= self._ended[-1].score
