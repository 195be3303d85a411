"""The vocabulary of a GGUF file: tokens, their types and scores, and the merges of its BPE.

Knows the key names and nothing of Hugging Face's format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from edge_runtime.errors import SourceFormatError


class TokenType(IntEnum):
    """``tokenizer.ggml.token_type``, as the GGUF specification numbers it."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Types that a merge must not produce: a user who types "</s>" must not end the turn. The pieces of
# unused tokens are steps to longer tokens, so merges do produce them, as in llama.cpp.
_NEVER_MERGED = frozenset({TokenType.UNKNOWN, TokenType.CONTROL, TokenType.BYTE})


@dataclass(frozen=True)
class Vocabulary:
    """Tokens in the order of their ids.

    Args:
        tokens: (V,) as the file spells them.
        types: (V,) of :class:`TokenType`; kept as int, since files hold other numbers too.
        scores: (V,) or None where the file has none; the higher, the earlier merged.
        ids: token -> id.
    """

    tokens: tuple[str, ...]
    types: tuple[int, ...]
    scores: tuple[float, ...] | None
    ids: dict[str, int]

    def written_merges(self, metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
        """The merges that the file lists, the first the most urgent.

        Raises:
            SourceFormatError: no merges, or one that the vocabulary cannot spell.
        """
        lines = _array(metadata, "tokenizer.ggml.merges", str)
        if lines is None:
            raise SourceFormatError("tokenizer.ggml.merges is missing")
        merges: dict[tuple[str, str], None] = {}
        for line in lines:
            # A token may begin with a space, so the separator is never the first character.
            at = line.find(" ", 1)
            left, right = line[:at], line[at + 1 :]
            if at < 0 or not (left in self.ids and right in self.ids and left + right in self.ids):
                raise SourceFormatError(f"tokenizer.ggml.merges: {line!r:.60} is no pair of tokens")
            merges[left, right] = None
        return list(merges)

    def merges_from_scores(self) -> list[tuple[str, str]]:
        """The merges that give the same tokens as merging, each time, to the best-scored piece.

        Every way of dividing a piece into two pieces is a merge, as urgent as the score of the
        piece that it makes (SentencePiece's BPE; Kudo and Richardson 2018).

        Raises:
            SourceFormatError: the vocabulary has no scores.
        """
        if self.scores is None:
            raise SourceFormatError("tokenizer.ggml.scores is missing")
        usable = {
            token: self.scores[token_id]
            for token_id, token in enumerate(self.tokens)
            if self.types[token_id] not in _NEVER_MERGED
        }
        merges: list[tuple[str, str]] = []
        # Stable, so pieces of equal score keep the order of their ids.
        for piece in sorted(usable, key=usable.__getitem__, reverse=True):
            merges += [
                (piece[:at], piece[at:])
                for at in range(1, len(piece))
                if piece[:at] in usable and piece[at:] in usable
            ]
        return merges


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """Read and check the vocabulary.

    Raises:
        SourceFormatError: missing tokens, a token twice, or arrays of different lengths.
    """
    tokens = _array(metadata, "tokenizer.ggml.tokens", str)
    if not tokens:
        raise SourceFormatError("the vocabulary is empty (tokenizer.ggml.tokens)")
    # An empty token can be matched by nothing; llama.cpp names it so.
    tokens = [token or f"[EMPTY_{token_id}]" for token_id, token in enumerate(tokens)]
    try:
        "".join(tokens).encode("utf-8")
    except UnicodeEncodeError as exc:
        raise SourceFormatError("tokenizer.ggml.tokens holds text that is not UTF-8") from exc
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        twice = next(token for token_id, token in enumerate(tokens) if ids[token] != token_id)
        raise SourceFormatError(f"tokenizer.ggml.tokens holds {twice!r:.60} twice")
    types = _array(metadata, "tokenizer.ggml.token_type", int, length=len(tokens))
    scores = _array(metadata, "tokenizer.ggml.scores", (int, float), length=len(tokens))
    return Vocabulary(
        tokens=tuple(tokens),
        types=tuple(types) if types is not None else (int(TokenType.NORMAL),) * len(tokens),
        scores=tuple(map(float, scores)) if scores is not None else None,
        ids=ids,
    )


def _array(
    metadata: Mapping[str, Any],
    key: str,
    kind: type | tuple[type, ...],
    *,
    length: int | None = None,
) -> list[Any] | None:
    """The array as a list of plain values, or None where the file has no such key."""
    value = metadata.get(key)
    if value is None:
        return None
    if hasattr(value, "tolist"):  # a numpy array
        value = value.tolist()
    if not isinstance(value, (list, tuple)):
        raise SourceFormatError(f"{key} should be an array, found {value!r:.60}")
    if not all(issubclass(found, kind) for found in set(map(type, value))):
        wrong = next(item for item in value if not isinstance(item, kind))
        raise SourceFormatError(f"{key} holds {wrong!r:.60}")
    if length is not None and len(value) != length:
        raise SourceFormatError(f"{key} has {len(value)} values for {length} tokens")
    return list(value)
