"""Token ids to text as they are generated, in whole characters.

A token may end in the middle of a character: its bytes wait until the rest has come. Knows no stop
string and no model.

Three rules:

- A piece never holds U+FFFD in place of bytes; only a model that truly writes U+FFFD shows it.
- Bytes that can never become valid UTF-8 are left out, and so is a character that is still
  incomplete at the end. An answer is for people and for JSON: a hole hurts them less than a mark
  that looks like a fault of the transport, and the token ids are there for who needs the bytes.
- All pieces together are ``b"".join(tokenizer.token_bytes(i) ...)`` decoded as UTF-8 with what is
  invalid left out. Whole code points are enough: a combining mark may come in the next piece.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from edge_runtime.text.tokenizer import Tokenizer

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class StreamingDetokenizer:
    """Turns one sequence's tokens into text; one object a sequence.

    Args:
        tokenizer: tells the bytes of each token.
        shown: special tokens whose names are text.
    """

    def __init__(self, tokenizer: Tokenizer, *, shown: Iterable[int] = ()) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._shown = {token: tokenizer.id_to_token(token).encode() for token in shown}
        self._decoder = _Utf8Decoder(errors="ignore")

    def add(self, token_id: int) -> str:
        """The characters that this token completes; empty for special tokens that are not shown.

        Raises:
            TokenizerError: a negative id.
        """
        return self._decoder.decode(self._shown.get(token_id) or self._token_bytes(token_id))

    def flush(self) -> str:
        """What is left when generation ends, and a fresh start.

        An incomplete character is dropped, so this is empty today; callers use it so that a
        policy that shows more needs no change of theirs.
        """
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
