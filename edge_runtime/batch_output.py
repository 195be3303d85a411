"""Batch outputs: answers, one JSON object a line, in a file that survives being killed.

Lines come in the order in which answers come, each written whole before the next. A killed process
loses nothing that was written. A power cut may cost the answers of the last second: a half-written
line is cut off when the output is opened again, and its request runs again.

Knows the input's index (:mod:`edge_runtime.batch_file`), no engine and no request body.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from edge_runtime.batch_file import ID_PREFIX, NAMED_EXAMPLES, InputIndex, and_more
from edge_runtime.errors import StorageError, UsageError

if TYPE_CHECKING:
    from filelock import BaseFileLock

_OWN_ID = re.compile(ID_PREFIX + r"([0-9a-f]{16})")
_LINE_START = f'{{"id": "{ID_PREFIX}'.encode()
_SYNC_INTERVAL_S = 1.0


@dataclass
class HeldAnswers:
    """What an output holds already.

    Attributes:
        answered: for each line number, 1 where the line has its answer.
        count: how many have.
        failed: how many of those are errors.
        cut_bytes: length of the half-written line that was cut off.
    """

    answered: bytearray
    count: int = 0
    failed: int = 0
    cut_bytes: int = 0


def is_failure(answer: Mapping[str, Any]) -> bool:
    """Whether an output line tells of an error."""
    response = answer.get("response")
    status = response.get("status_code") if isinstance(response, dict) else None
    return answer.get("error") is not None or status != 200


class BatchOutput:
    """An output that is open for appending, by the one run that may write it.

    Use :func:`open_output`.

    Args:
        path: the file; made if it is not there.
        held: what it held before.
        lock: held already; released when the output is closed.
    """

    def __init__(self, path: Path, held: HeldAnswers, lock: BaseFileLock) -> None:
        self.path = path
        self.held = held
        self._lock = lock
        # Unbuffered: what was appended is the system's, whatever becomes of this process.
        self._file = path.open("ab", buffering=0)
        self._synced_s = time.monotonic()
        self._unsynced = False

    def append(self, answer: Mapping[str, Any]) -> None:
        """Write one line.

        Raises:
            StorageError: the disk is full, or the file cannot be written any more.
        """
        line = _as_json(answer) + b"\n"
        start = self._file.seek(0, os.SEEK_END)
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as exc:
            with contextlib.suppress(OSError):
                self._file.truncate(start)
            raise _write_error(self.path, exc) from exc
        self._unsynced = True
        self.sync_if_due()

    def sync_if_due(self) -> None:
        """Bring what was written to the disk, if the last time was long enough ago."""
        if self._unsynced and time.monotonic() - self._synced_s >= _SYNC_INTERVAL_S:
            self._sync()

    def _sync(self) -> None:
        try:
            os.fsync(self._file.fileno())
        except OSError as exc:
            if exc.errno != errno.EINVAL:  # some file systems have no such thing
                raise _write_error(self.path, exc) from exc
        self._synced_s = time.monotonic()
        self._unsynced = False

    def __enter__(self) -> BatchOutput:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._sync()
        finally:
            self._file.close()
            self._lock.release()


def open_output(path: Path, index: InputIndex, *, force: bool) -> BatchOutput:
    """Open an output, to go on where an earlier run ended.

    A file ``NAME.lock`` beside it keeps other runs away, and stays.

    Args:
        path: the output.
        index: what the input holds.
        force: keep lines that answer something else, instead of refusing the file.

    Raises:
        UsageError: another run writes it, it is no output of a batch, it belongs to another input,
            or it cannot be written.
        StorageError: the disk is full.
    """
    from filelock import FileLock, Timeout

    try:
        if path.exists() and path.samefile(index.path):
            raise UsageError(f"{path} is the input", hint="name another file for the output")
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} is not a file", hint="name a file for the output")
        if not path.parent.is_dir():  # the lock would make it
            raise UsageError(f"{path} cannot be written: there is no folder {path.parent}")
        lock = FileLock(path.with_name(path.name + ".lock"))
        lock.acquire(timeout=0)
    except Timeout as exc:
        raise UsageError(
            f"another process writes {path}", hint="wait for it, or name another output"
        ) from exc
    except OSError as exc:
        raise _write_error(path, exc) from exc
    try:
        return BatchOutput(path, _read_output(path, index, force=force), lock)
    except BaseException as exc:
        lock.release()
        if isinstance(exc, OSError):
            raise _write_error(path, exc) from exc
        raise


def _read_output(path: Path, index: InputIndex, *, force: bool) -> HeldAnswers:
    """Find what is answered; cut off a half-written last line once all others are known to fit."""
    held = HeldAnswers(bytearray(len(index.ids)))
    foreign: list[str] = []
    foreign_count = whole_bytes = 0
    tail = b""
    if path.exists():
        with path.open("rb") as stream:
            for number, raw in enumerate(stream, start=1):
                if not raw.endswith(b"\n"):
                    tail = raw
                    break
                whole_bytes += len(raw)
                if not raw.strip():
                    continue
                answer = _parse_answer(path, number, raw)
                line_number, objection = _answered_line(answer, index)
                if objection:
                    foreign_count += 1
                    foreign = [*foreign, f"line {number} {objection}"][:NAMED_EXAMPLES]
                if line_number is not None and not held.answered[line_number]:
                    held.answered[line_number] = 1
                    held.count += 1
                    held.failed += is_failure(answer)
    if foreign and not force:
        raise UsageError(
            f"{path} belongs to another input than {index.path}: "
            f"{'; '.join(foreign)}{and_more(foreign_count)}",
            hint="name another output; remove the lines that should be answered again; or --force "
            "to keep them and go on",
        )
    if tail:
        _cut(path, whole_bytes, tail)
        held.cut_bytes = len(tail)
    return held


def _parse_answer(path: Path, number: int, raw: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError):
        answer = None
    if not (isinstance(answer, dict) and {"id", "custom_id", "response"} <= answer.keys()):
        raise UsageError(
            f"{path} is no output of a batch: line {number} is not an answer",
            hint="name another output, or remove the line if it was damaged",
        )
    return answer


def _answered_line(answer: Mapping[str, Any], index: InputIndex) -> tuple[int | None, str]:
    """The input line that an output line answers, if any, and what speaks against it."""
    own = _OWN_ID.fullmatch(str(answer["id"]))
    custom_id = answer["custom_id"]
    if isinstance(custom_id, str):
        number = index.numbers.get(custom_id)
        if number is None:
            return None, f"answers {custom_id!r}, which is not in the input"
        if own and int(own[1], 16) != index.ids[number]:
            return number, f"answers {custom_id!r}, but not as the input's line {number} has it now"
        return number, ""
    number = index.nameless.get(int(own[1], 16)) if own else None
    return number, "" if number else "answers a line without a custom_id that is not in the input"


def _cut(path: Path, keep_bytes: int, tail: bytes) -> None:
    """Cut off a half-written line; anything else at a file's end is somebody's, and stays."""
    written = tail.rstrip(b"\0")  # a power cut can leave zeros where data was still to come
    if not (written.startswith(_LINE_START) or _LINE_START.startswith(written)):
        raise UsageError(
            f"{path} is no output of a batch: its last line is not an answer",
            hint="name another output",
        )
    os.truncate(path, keep_bytes)


def _as_json(answer: Mapping[str, Any]) -> bytes:
    text = json.dumps(answer, ensure_ascii=False, allow_nan=False)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:  # half of a surrogate pair, from somebody's custom_id
        return json.dumps(answer, allow_nan=False).encode("ascii")


def _write_error(path: Path, exc: OSError) -> StorageError | UsageError:
    if exc.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(
            f"the disk is full: {path}",
            hint="free some space and give the same command again: it goes on from there",
        )
    return UsageError(f"{path} cannot be written: {exc.strerror or exc}")
