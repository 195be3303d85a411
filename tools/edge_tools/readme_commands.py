"""Run what a document tells its readers to run, so that it cannot drift.

    python -m edge_tools.readme_commands README.md [--run] [--except "sh tools/test.sh"]

Every fenced block of ``sh`` or ``python`` is a promise. Without --run they are listed; with it they
run in order in the current directory, as one reader would: what an ``sh`` block makes is there for
the next one, and so are the directory and the variables it set. Knows no command of this project.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edge_runtime.errors import UsageError
from edge_tools.command import run, say

LANGUAGES = ("sh", "python")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the line its first line of code is at, and the code."""

    language: str
    line: int
    code: str


def blocks(text: str) -> list[Block]:
    """The fenced blocks of ``sh`` and ``python`` in a Markdown text.

    Raises:
        UsageError: a fence is not closed.
    """
    found: list[Block] = []
    opened: tuple[str, int] | None = None
    code: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("```"):
            code.append(line)
        elif opened is None:
            opened, code = (line[3:].strip(), number + 1), []
        else:
            found.append(Block(*opened, code="\n".join(code)))
            opened = None
    if opened is not None:
        raise UsageError(f"the block that begins at line {opened[1]} is not closed")
    return [block for block in found if block.language in LANGUAGES]


def commands(block: Block) -> list[str]:
    """The commands of an ``sh`` block, one a line; continued lines are joined, comments dropped."""
    joined = block.code.replace("\\\n", " ")
    lines = (line.strip() for line in joined.splitlines())
    return [" ".join(line.split()) for line in lines if line and not line.startswith("#")]


def script(found: Sequence[Block], left_out: Collection[str]) -> str:
    """One POSIX shell script that does what all blocks say, and stops at the first failure."""
    return "\n".join(["set -eu", *_lines(found, left_out), ""])


def _lines(found: Sequence[Block], left_out: Collection[str]) -> Iterator[str]:
    for block in found:
        if block.language == "python":
            yield f"echo '$ python (line {block.line})' >&2"
            yield f"python -c {shlex.quote(block.code)}"
            continue
        for command in commands(block):
            if command in left_out:
                yield f"echo {shlex.quote(f'(left out) {command}')} >&2"
            else:
                yield f"echo {shlex.quote(f'$ {command}')} >&2"
                yield command


def main() -> None:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m edge_tools.readme_commands")
    made.add_argument("document", type=Path)
    made.add_argument("--run", action="store_true", help="run them; otherwise they are listed")
    made.add_argument(
        "--except", dest="left_out", action="append", default=[], help="a command to leave out"
    )
    asked = made.parse_args()
    found = blocks(asked.document.read_text(encoding="utf-8"))
    known = {command for block in found if block.language == "sh" for command in commands(block)}
    unknown = set(asked.left_out) - known
    if unknown:
        raise UsageError(f"{asked.document} has no command {sorted(unknown)[0]!r}")
    made_script = script(found, asked.left_out)
    if not asked.run:
        print(made_script, end="")
        return
    status = subprocess.run(
        ["sh", "-c", made_script], stdin=subprocess.DEVNULL, check=False
    ).returncode
    if status != 0:
        say(f"error: a command of {asked.document} failed with exit code {status}")
        sys.exit(1)


if __name__ == "__main__":
    run(main)
