"""Text to token ids and back: the interface, and the one that reads a bundle's tokenizer.json.

Hugging Face's ``tokenizers`` does the encoding. Decoding is done here from the bytes that each
token stands for, so that a stream of pieces and the whole text always agree. Knows no chat
template, no stop string and no model.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from enum import Enum
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from edge_runtime.errors import TokenizerError

if TYPE_CHECKING:  # importing the library costs start-up time: load() does it
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as LibraryTokenizer

_WORD_BOUNDARY = "\u2581"  # SentencePiece writes a space as this character
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Tokenizer(Protocol):
    """What the engine, the server and the tests ask of a tokenizer."""

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens, special ones included."""

    def encode(self, text: str, *, add_bos: bool = False) -> list[int]:
        """Token ids of a text in which special tokens are parsed where they are written.

        Args:
            text: for instance a rendered chat template.
            add_bos: begin with the beginning-of-text token, unless the text already does.

        Raises:
            TokenizerError: the text is not valid Unicode, or ``add_bos`` without such a token.
        """

    def encode_plain(self, text: str) -> list[int]:
        """Token ids of a text in which the names of special tokens are ordinary characters.

        For content that a user supplies, who must not be able to end a turn by writing so.

        Raises:
            TokenizerError: the text is not valid Unicode.
        """

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text that these ids encode: the inverse of :meth:`encode`.

        Bytes that are not valid UTF-8 are left out. Where encoding puts a space before the text,
        decoding takes it off; :class:`edge_runtime.text.detokenizer.StreamingDetokenizer`, which
        continues a text, does not.

        Args:
            ids: token ids.
            skip_special: leave special tokens out; otherwise they appear by name.

        Raises:
            TokenizerError: an id that no tokenizer has.
        """

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of text that a token stands for; they may be part of a character.

        Empty for special tokens (:meth:`id_to_token` names them), and for ids past the
        vocabulary, which models with a padded embedding can produce.

        Raises:
            TokenizerError: a negative id.
        """

    def is_special(self, token_id: int) -> bool:
        """Whether the token steers the model and stands for no text."""

    def token_to_id(self, token: str) -> int | None:
        """The id of a token as the vocabulary spells it, or None."""

    def id_to_token(self, token_id: int) -> str:
        """A token as the vocabulary spells it.

        Raises:
            TokenizerError: the vocabulary has no such id.
        """


class _Spelling(Enum):
    """How a vocabulary writes bytes in its tokens."""

    BYTE_LEVEL = "byte-level"  # each byte is one printable character (GPT-2's table)
    SENTENCEPIECE = "sentencepiece"  # text, a mark for spaces, and <0xXX> for lone bytes


class BundleTokenizer:
    """A :class:`Tokenizer` from a ``tokenizer.json``.

    Safe to use from several threads. Nothing here loops over the vocabulary when it loads: tables
    are filled as tokens are asked for.
    """

    def __init__(self, library: LibraryTokenizer, *, bos_token_id: int | None = None) -> None:
        # A file may carry the lengths of somebody's training run: prompts were silently cut.
        library.no_truncation()
        library.no_padding()
        self._library = library
        self._bos_token_id = bos_token_id
        # Parsing of special tokens is a switch on the library's object, not an argument.
        self._lock = threading.Lock()
        self._bytes: dict[int, bytes] = {}
        decoder = json.loads(library.decoder.__getstate__()) if library.decoder else {}
        self._spelling, self._strips_leading_space = _read_decoder(decoder)

    @classmethod
    def load(cls, path: Path, *, bos_token_id: int | None) -> BundleTokenizer:
        """Read a ``tokenizer.json``.

        Args:
            path: the file.
            bos_token_id: the token that ``encode(..., add_bos=True)`` puts first, if any.

        Raises:
            TokenizerError: the file is missing or malformed, or spells tokens in a way that this
                version cannot turn into bytes.
        """
        from tokenizers import Tokenizer as LibraryTokenizer

        try:
            library = LibraryTokenizer.from_buffer(path.read_bytes())
        except OSError as exc:
            raise TokenizerError(f"{path}: cannot be read: {exc.strerror}") from exc
        except BaseException as exc:
            if not _is_the_librarys(exc):
                raise
            raise TokenizerError(
                f"{path}: not a tokenizer that can be loaded: {exc}",
                hint="export the model again",
            ) from exc
        return cls(library, bos_token_id=bos_token_id)

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens, special ones included."""
        return self._library.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, add_bos: bool = False) -> list[int]:
        """As :meth:`Tokenizer.encode`."""
        ids = self._encode(text, parse_special=True)
        if not add_bos:
            return ids
        if self._bos_token_id is None:
            raise TokenizerError("this tokenizer has no beginning-of-text token to add")
        # Most chat templates write the token themselves; two of them confuse a model.
        return ids if ids[:1] == [self._bos_token_id] else [self._bos_token_id, *ids]

    def encode_plain(self, text: str) -> list[int]:
        """As :meth:`Tokenizer.encode_plain`."""
        return self._encode(text, parse_special=False)

    def _encode(self, text: str, *, parse_special: bool) -> list[int]:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as exc:
            raise TokenizerError(
                f"the text is not valid Unicode: U+{ord(text[exc.start]):04X} at character "
                f"{exc.start} is half of a surrogate pair",
                hint="decode the input as UTF-8 before passing it on",
            ) from exc
        with self._lock:
            self._library.encode_special_tokens = not parse_special
            try:
                return self._library.encode(text, add_special_tokens=False).ids
            except BaseException as exc:
                if not _is_the_librarys(exc):
                    raise
                raise TokenizerError(f"the tokenizer cannot encode the text: {exc}") from exc

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """As :meth:`Tokenizer.decode`."""
        pieces = [
            self.id_to_token(i).encode("utf-8")
            if not skip_special and self.is_special(i)
            else self.token_bytes(i)
            for i in ids
        ]
        text = b"".join(pieces).decode("utf-8", errors="ignore")
        return text[1:] if self._strips_leading_space and text.startswith(" ") else text

    def token_bytes(self, token_id: int) -> bytes:
        """As :meth:`Tokenizer.token_bytes`."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._spell(token_id)
        return known

    def _spell(self, token_id: int) -> bytes:
        added = self._added_tokens.get(token_id)
        if added is not None and added.special:
            return b""
        token = self._library.id_to_token(_checked(token_id))
        if token is None:
            return b""
        if self._spelling is _Spelling.SENTENCEPIECE:
            byte = _BYTE_PIECE.fullmatch(token)
            if byte and added is None:
                return bytes.fromhex(byte[1])
            return token.replace(_WORD_BOUNDARY, " ").encode("utf-8")
        if added is not None:  # added tokens are written as plain text
            return token.encode("utf-8")
        table = _byte_of_character()
        try:
            return bytes(table[character] for character in token)
        except KeyError:  # not spelt in bytes: a padding entry such as "[PAD 7]"
            return token.encode("utf-8")

    def is_special(self, token_id: int) -> bool:
        """As :meth:`Tokenizer.is_special`."""
        added = self._added_tokens.get(token_id)
        return added is not None and added.special

    def token_to_id(self, token: str) -> int | None:
        """As :meth:`Tokenizer.token_to_id`."""
        try:
            return self._library.token_to_id(token)
        except UnicodeEncodeError:
            return None

    def id_to_token(self, token_id: int) -> str:
        """As :meth:`Tokenizer.id_to_token`."""
        token = self._library.id_to_token(_checked(token_id))
        if token is None:
            raise TokenizerError(
                f"token {token_id} is outside the vocabulary of {self.vocabulary_size} tokens"
            )
        return token

    @cached_property
    def _added_tokens(self) -> dict[int, AddedToken]:
        return self._library.get_added_tokens_decoder()


def _is_the_librarys(exc: BaseException) -> bool:
    """Whether an error is the library's own: it raises plain Exception for whatever is wrong.

    A panic inside it, say of a split pattern that would search for ever, is no Exception at all,
    and its type cannot be imported.
    """
    return isinstance(exc, Exception) or type(exc).__name__ == "PanicException"


def _checked(token_id: int) -> int:
    """The id, if the library's unsigned 32-bit ids can hold it."""
    if not 0 <= token_id < 2**32:
        raise TokenizerError(f"{token_id} is not a token id")
    return token_id


def _read_decoder(decoder: dict[str, Any]) -> tuple[_Spelling, bool]:
    """How tokens are spelt, and whether decoding takes one leading space off."""
    steps = decoder.get("decoders", [decoder])
    kinds = {step.get("type") for step in steps}
    if "ByteLevel" in kinds:
        return _Spelling.BYTE_LEVEL, False
    if kinds & {"ByteFallback", "Metaspace"}:
        strips = any(
            (step.get("type") == "Strip" and step.get("start", 0) > 0)
            or (step.get("type") == "Metaspace" and step.get("prepend_scheme") != "never")
            for step in steps
        )
        return _Spelling.SENTENCEPIECE, strips
    names = ", ".join(sorted(str(kind) for kind in kinds if kind)) or "none"
    raise TokenizerError(
        f"the tokenizer's decoder ({names}) is of a kind that cannot be turned into bytes",
        hint="byte-level BPE and SentencePiece-style tokenizers with byte fallback are supported",
    )


@lru_cache(maxsize=1)
def _byte_of_character() -> dict[str, int]:
    """The byte that each character of a byte-level token stands for.

    GPT-2's table (Radford et al. 2019): bytes that print in Latin-1 stand for themselves, and the
    others, in order, take the characters from U+0100.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    table.update({chr(0x100 + offset): byte for offset, byte in enumerate(others)})
    return table
