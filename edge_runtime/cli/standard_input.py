"""Text that comes in through standard input or the command line, checked to be text.

Knows nothing of what it is for.
"""

from __future__ import annotations

import os
import stat
import sys

from edge_runtime.errors import UsageError


def read_piped_text() -> str:
    """All of standard input if something is piped or redirected into it, else nothing.

    One newline at the end goes, as in a shell's ``$(...)``: it is ``echo``'s, not the writer's.

    Raises:
        UsageError: it is not UTF-8.
    """
    if not is_piped():
        return ""
    text = decode_utf8(sys.stdin.buffer.read()).removeprefix("\ufeff")
    return text.removesuffix("\n").removesuffix("\r")


def is_piped() -> bool:
    """Whether standard input is a pipe, a file or a socket.

    A terminal is not; nor is /dev/null, or a standard input that was closed.
    """
    if sys.stdin is None:
        return False
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def decode_utf8(data: bytes) -> str:
    """Text of the bytes that standard input gave.

    Raises:
        UsageError: they are not UTF-8; the message names the byte.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise UsageError(
            f"standard input is not UTF-8: byte 0x{data[exc.start]:02x} at offset {exc.start}",
            hint="convert it first: iconv -f LATIN1 -t UTF-8",
        ) from exc


def require_valid_unicode(text: str, what: str) -> None:
    """Refuse text from the command line that held bytes which are not UTF-8.

    Raises:
        UsageError: it did.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as exc:
        raise UsageError(
            f"{what} is not valid text at character {exc.start}",
            hint="it has to be in the terminal's encoding, UTF-8 as a rule",
        ) from exc
