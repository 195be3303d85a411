"""Doubles that ship with the interfaces, so that tests of any room need no model and no file.

Knows no session: a double answers what it was told to, and checks what it was asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from edge_runtime.engine.model_runner import RunTerminatedError, StepInput
from edge_runtime.errors import RunError, TokenizerError
from edge_runtime.generation.speculation import MAX_DRAFT_TOKENS


class ByteTokenizer:
    """A :class:`edge_runtime.text.tokenizer.Tokenizer` whose tokens are bytes.

    Ids 0 to 255 are the bytes; the special tokens follow in order.

    Args:
        special: names of the special tokens. The first is the beginning-of-text token.
    """

    def __init__(self, special: Sequence[str] = ("<|bos|>", "<|end|>")) -> None:
        self._special = tuple(special)
        self._pattern = re.compile("|".join(map(re.escape, self._special)) or r"(?!)")

    @property
    def vocabulary_size(self) -> int:
        """256 bytes and the special tokens."""
        return 256 + len(self._special)

    def encode(self, text: str, *, add_bos: bool = False) -> list[int]:
        """The bytes, with special tokens parsed; as :class:`Tokenizer` says."""
        ids: list[int] = []
        end = 0
        for found in self._pattern.finditer(text):
            ids += self.encode_plain(text[end : found.start()])
            ids.append(256 + self._special.index(found[0]))
            end = found.end()
        ids += self.encode_plain(text[end:])
        return [256, *ids] if add_bos and ids[:1] != [256] else ids

    def encode_plain(self, text: str) -> list[int]:
        """The bytes."""
        try:
            return list(text.encode("utf-8"))
        except UnicodeEncodeError as exc:
            raise TokenizerError(f"the text is not valid Unicode: {exc.reason}") from exc

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text; invalid UTF-8 is left out."""
        pieces = (
            self.id_to_token(i).encode("utf-8")
            if self.is_special(i) and not skip_special
            else self.token_bytes(i)
            for i in ids
        )
        return b"".join(pieces).decode("utf-8", errors="ignore")

    def token_bytes(self, token_id: int) -> bytes:
        """The one byte, or none for a special token."""
        if token_id < 0:
            raise TokenizerError(f"{token_id} is not a token id")
        return bytes([token_id]) if token_id < 256 else b""

    def is_special(self, token_id: int) -> bool:
        """Whether the id is past the bytes."""
        return 256 <= token_id < self.vocabulary_size

    def token_to_id(self, token: str) -> int | None:
        """The id of a special token's name or of ``<0xXX>``, or None."""
        if token in self._special:
            return 256 + self._special.index(token)
        byte = re.fullmatch(r"<0x([0-9A-F]{2})>", token)
        return int(byte[1], 16) if byte else None

    def id_to_token(self, token_id: int) -> str:
        """The special token's name, or ``<0xXX>``."""
        if not 0 <= token_id < self.vocabulary_size:
            raise TokenizerError(
                f"token {token_id} is outside the vocabulary of {self.vocabulary_size} tokens"
            )
        return self._special[token_id - 256] if token_id >= 256 else f"<0x{token_id:02X}>"


class ScriptedRunner:
    """A :class:`edge_runtime.engine.model_runner.ModelRunner` that follows a script.

    It keeps the tokens that each slot would hold, so that a wrong count, slot or cache prefix shows
    as a wrong answer.

    Args:
        next_token: the tokens of a sequence so far -> the token whose logit is highest.
        vocabulary_size: V of the logits.
        fail_at: numbers of the runs, from 1, that raise RunError.
        before_run: called with the number of each run before it; may call :meth:`terminate`.
    """

    def __init__(
        self,
        next_token: Callable[[Sequence[int]], int],
        *,
        vocabulary_size: int,
        fail_at: Sequence[int] = (),
        before_run: Callable[[int], None] | None = None,
    ) -> None:
        self._next_token = next_token
        self._vocabulary_size = vocabulary_size
        self._fail_at = frozenset(fail_at)
        self._before_run = before_run
        self._terminate = False
        self._slots: dict[int, list[int]] = {}
        self.steps: list[StepInput] = []
        """Every run that was asked for."""
        self.shrinks = 0
        """How often it was asked to return memory."""

    def run(self, step: StepInput) -> NDArray[np.float32]:
        """As :meth:`ModelRunner.run`: 1 at the scripted token, 0 elsewhere."""
        self.steps.append(step)
        if self._before_run is not None:
            self._before_run(len(self.steps))
        if self._terminate:
            self._terminate = False
            raise RunTerminatedError("the run was stopped")
        if len(self.steps) in self._fail_at:
            raise RunError("scripted to fail")
        rows, wanted = step.logits_indices.shape
        logits = np.zeros((rows, wanted, self._vocabulary_size), np.float32)
        for row in range(rows):
            held, count = int(step.held[row]), int(step.lengths[row])
            tokens = self._slots.setdefault(step.first_slot + row, [])
            assert held <= len(tokens), f"the slot holds {len(tokens)} tokens, not {held}"
            tokens[held:] = [int(t) for t in step.token_ids[row, :count]]
            for n, position in enumerate(step.logits_indices[row]):
                self.score(tokens[: held + int(position) + 1], logits[row, n])
        return logits

    def score(self, seen: Sequence[int], logits: NDArray[np.float32]) -> None:
        """Write the logits (V,) after the tokens ``seen``; they are 0."""
        logits[self._next_token(seen)] = 1.0

    def copy(self, source: int, target: int, *, tokens: int, first: int = 0) -> None:
        """As :meth:`edge_runtime.engine.kv_cache.KVCache.copy`, of the tokens it keeps."""
        kept = self._slots[target][:first] if first else []
        self._slots[target] = kept + self._slots[source][first:tokens]

    def terminate(self) -> None:
        """As :meth:`ModelRunner.terminate`."""
        self._terminate = True

    def shrink(self) -> None:
        """As :meth:`ModelRunner.shrink`."""
        self.shrinks += 1

    def close(self) -> None:
        """As :meth:`ModelRunner.close`."""


def replying(prompt: Sequence[int], reply: Sequence[int]) -> Callable[[Sequence[int]], int]:
    """A script for :class:`ScriptedRunner`: after ``prompt`` comes ``reply``, and nothing else.

    Only a draft may end in other tokens; what follows those is of no interest, and is token 0.
    """
    script = [*prompt, *reply]

    def next_token(seen: Sequence[int]) -> int:
        evaluated = list(seen[: max(0, len(seen) - MAX_DRAFT_TOKENS)])
        assert evaluated == script[: len(evaluated)], f"asked for {list(seen)}, scripted {script}"
        if list(seen) != script[: len(seen)]:
            return 0
        return script[len(seen)] if len(seen) < len(script) else 0

    return next_token
