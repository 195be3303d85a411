"""Batch inputs: requests, one JSON object a line, read as a stream.

Each line has an id made from its content, which names its line in the output: a later run can tell
which lines are answered, and whether they still say what was answered. A line that is no request
is passed on with what is wrong with it: it gets an answer, too.

Knows no output (:mod:`edge_runtime.batch_output`), no request body and no engine.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge_runtime.api.openai_error import RequestRefusedError
from edge_runtime.errors import UsageError

ID_PREFIX = "batch_req_"
NAMED_EXAMPLES = 3
"""How many of several things an error names."""


@dataclass(frozen=True)
class BatchLine:
    """One line of an input.

    ``id`` names its output line; ``number`` counts from 1. Where ``problem`` is set the line is no
    request, and ``content`` is empty.
    """

    number: int
    id: str
    custom_id: str | None
    content: Mapping[str, Any]
    problem: RequestRefusedError | None = None


def read_lines(path: Path) -> Iterator[BatchLine]:
    """The lines of an input, one at a time; blank ones are left out.

    Raises:
        UsageError: the file is missing, not a regular file, or cannot be read.
    """
    try:
        if not path.is_file():
            raise UsageError(
                f"{path} is not a file", hint="the input is read more than once: no pipe will do"
            )
        with path.open("rb") as stream:
            for number, raw in enumerate(stream, start=1):
                text = (raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw).strip()
                if text:
                    yield _parse(number, text)
    except OSError as exc:
        raise UsageError(f"{path} cannot be read: {exc.strerror or exc}") from exc


def _parse(number: int, text: bytes) -> BatchLine:
    try:
        content = json.loads(text.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as exc:
        reason = str(exc) or "nested too deeply"
        return _bad_line(number, text, f"line {number} is not JSON: {reason}", None)
    if not isinstance(content, dict):
        return _bad_line(number, text, f"line {number} is not a JSON object", None)
    custom_id = content.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        found = "is missing" if custom_id is None else "must be a string that is not empty"
        return _bad_line(number, text, f"line {number}: custom_id {found}", "custom_id")
    return BatchLine(number, _line_id(text), custom_id, content)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _bad_line(number: int, text: bytes, message: str, param: str | None) -> BatchLine:
    problem = RequestRefusedError(message, param=param, code="invalid_line")
    # Two lines without a name may be equal: their numbers keep them apart.
    return BatchLine(number, _line_id(b"%d:%b" % (number, text)), None, {}, problem)


def _line_id(text: bytes) -> str:
    return ID_PREFIX + hashlib.blake2b(text, digest_size=8).hexdigest()


@dataclass
class InputIndex:
    """Which requests an input holds; about 200 bytes a line, and no request's content.

    Attributes:
        path: the input.
        lines: lines that are not blank.
        numbers: custom_id -> line number.
        nameless: id, as a number -> line number, of lines without a custom_id.
        ids: at each line number, its id as a number.
    """

    path: Path
    lines: int = 0
    numbers: dict[str, int] = field(default_factory=dict)
    nameless: dict[int, int] = field(default_factory=dict)
    ids: array[int] = field(default_factory=lambda: array("Q", [0]))


def index_input(path: Path) -> InputIndex:
    """Read an input through, to know what a run has to answer.

    Raises:
        UsageError: it cannot be read, or a custom_id stands on several lines.
    """
    index = InputIndex(path)
    repeated: defaultdict[str, list[int]] = defaultdict(list)
    for line in read_lines(path):
        index.lines += 1
        index.ids.extend([0] * (line.number - len(index.ids)))
        index.ids.append(_as_number(line.id))
        if line.custom_id is None:
            index.nameless[index.ids[-1]] = line.number
        elif line.custom_id in index.numbers:
            repeated[line.custom_id].append(line.number)
        else:
            index.numbers[line.custom_id] = line.number
    if repeated:
        raise UsageError(
            f"{path}: {_repetitions(index, repeated)}", hint="give each request a custom_id"
        )
    return index


def _repetitions(index: InputIndex, repeated: Mapping[str, list[int]]) -> str:
    said = [
        f"custom_id {name!r} is on lines {', '.join(map(str, [index.numbers[name], *later]))}"
        for name, later in list(repeated.items())[:NAMED_EXAMPLES]
    ]
    return "; ".join(said) + and_more(len(repeated))


def _as_number(line_id: str) -> int:
    return int(line_id.removeprefix(ID_PREFIX), 16)


def and_more(count: int) -> str:
    """What follows the first few of ``count`` examples."""
    return f"; and {count - NAMED_EXAMPLES} more" if count > NAMED_EXAMPLES else ""
