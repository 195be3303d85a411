"""``edge-runtime COMMAND ...``: finds the command, runs it, and turns errors into exit codes.

A command is a module of this package with ``configure(parser)`` and ``run(arguments) -> int``. Only
the one that was asked for is imported: the time from start to first token is a promise. This is the
one place where an error becomes a line on stderr. Knows nothing of what the commands do.

Exit codes: 0 done; 1 it failed; 2 it was asked wrongly; 130 interrupted by Ctrl-C; 141 whoever read
the output went away (as a shell reports a program that SIGPIPE ended).
"""

from __future__ import annotations

import argparse
import errno
import gc
import importlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Protocol, cast

from edge_runtime._version import __version__
from edge_runtime.errors import EdgeRuntimeError, UsageError

PROGRAM = "edge-runtime"
INTERRUPTED = 130
BROKEN_PIPE = 141
# Looking for cycles after every 700 new objects takes a twentieth of the time to the first token:
# imports make hundreds of thousands, and none of them is ever garbage.
_OBJECTS_BETWEEN_COLLECTIONS = 50_000

COMMANDS = {
    "pull": "bring a model into the local store (the only command that uses the network)",
    "export": "turn a .gguf file or a model directory into a bundle",
    "run": "answer one prompt",
    "chat": "talk with a model",
    "batch": "answer a file of requests, and go on after an interruption",
    "embed": "turn texts into vectors",
    "serve": "answer over local HTTP, as OpenAI and Ollama do",
    "plan": "show how a memory cap would be split",
    "cache": "save a long prompt once, and start warm with it (save, list, inspect, rm)",
    "bench": "measure a model here: speed, start-up and memory",
    "eval": "show what an export cost in quality, on a text",
    "inspect": "show what a bundle or a .gguf file holds",
    "doctor": "show what this machine can run models on, and what is missing",
    "targets": "list the devices that models can be made and run for",
    "list": "show what is in the local store",
    "rm": "take models out of the local store",
}
_MODULES = {name: f"edge_runtime.cli.{name}" for name in COMMANDS} | {
    # Not modules named as built-ins.
    "eval": "edge_runtime.cli.evaluation",
    "list": "edge_runtime.cli.listing",
}


class Command(Protocol):
    """What the module of a command offers."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it; the result is the exit code."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are raised, to be shown as all others are."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError instead of printing and leaving."""
        raise UsageError(message, hint=f"see: {self.prog} --help")


def entry_point() -> NoReturn:
    """The program: runs `main` on the command line and ends the process."""
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    _occupy_closed_descriptors()
    code = main(sys.argv[1:])
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        # What could not be written has been reported, or nobody is there to read it; the
        # interpreter would try once more at its end, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = code or 1
    # All is said: a Ctrl-C while the interpreter closes down would only add its traceback.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


def main(argv: Sequence[str]) -> int:
    """Run one command.

    Args:
        argv: the arguments, without the program's name.

    Returns:
        The exit code. Errors of EdgeRuntimeError's tree have been shown; any other is a bug and
        comes through, for its traceback.
    """
    _prepare_streams()
    try:
        code = _dispatch(list(argv))
        if sys.stdout is not None:
            sys.stdout.flush()  # here, so that a reader who has left is noticed
        return code
    except EdgeRuntimeError as exc:
        return _show(exc.message, exc.hint, exc.exit_code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return BROKEN_PIPE
    except MemoryError:
        return _show("out of memory", "try a smaller model, --quant int4, or a smaller --context")
    except OSError as exc:
        if exc.errno != errno.ENOSPC:
            raise
        where = f": {exc.filename}" if exc.filename else ""
        return _show(f"the disk is full{where}", "free some space, or set EDGE_RUNTIME_HOME")


def _dispatch(argv: list[str]) -> int:
    parser = Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} COMMAND ...",
        description="Run small language models on devices you own.",
        epilog=_command_list(PROGRAM, COMMANDS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    name = _first_word(parser, argv, COMMANDS)
    return 0 if name is None else _run_command(name, _MODULES[name], argv[1:])


def _first_word(parser: Parser, argv: list[str], commands: Mapping[str, str]) -> str | None:
    """The command that comes first, what follows being its own business; None if help was shown."""
    parser.add_argument("command", nargs="?", metavar="COMMAND", help=argparse.SUPPRESS)
    name = parser.parse_args(argv[:1]).command
    if name is None:
        parser.print_help()
        return None
    if name not in commands:
        raise _unknown_command(name, commands)
    return str(name)


def _run_group(name: str, group: Any, rest: list[str]) -> int:
    """A command that is a group: its module has COMMANDS and MODULES, as this one."""
    parser = Parser(
        prog=f"{PROGRAM} {name}",
        usage=f"{PROGRAM} {name} COMMAND ...",
        description=(group.__doc__ or "").partition("\n")[0],
        epilog=_command_list(f"{PROGRAM} {name}", group.COMMANDS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    chosen = _first_word(parser, rest, group.COMMANDS)
    return (
        0 if chosen is None else _run_command(f"{name} {chosen}", group.MODULES[chosen], rest[1:])
    )


def _run_command(name: str, module: str, rest: list[str]) -> int:
    loaded = importlib.import_module(module)
    if hasattr(loaded, "COMMANDS"):
        return _run_group(name, loaded, rest)
    command = cast(Command, loaded)
    parser = Parser(
        prog=f"{PROGRAM} {name}",
        description=(command.__doc__ or "").partition("\n")[0],
        allow_abbrev=False,
    )
    command.configure(parser)
    # Intermixed: `run MODEL --seed 1 PROMPT` finds its prompt after an option, too.
    return command.run(parser.parse_intermixed_args(rest))


def _command_list(program: str, commands: Mapping[str, str]) -> str:
    width = max(map(len, commands))
    lines = [f"  {name:<{width}}  {text}" for name, text in commands.items()]
    return "\n".join(["commands:", *lines, "", f"{program} COMMAND --help says more of one."])


def _unknown_command(name: str, commands: Mapping[str, str]) -> UsageError:
    from edge_runtime.near_names import near_names

    near = near_names(name, commands)
    hint = f"did you mean {' or '.join(near)}?" if near else f"commands: {', '.join(commands)}"
    return UsageError(f"no such command: {name}", hint=hint)


def _show(message: str, hint: str | None, code: int = 1) -> int:
    text = f"error: {_one_line(message)}\n" + (f"\nhint: {_one_line(hint)}\n" if hint else "")
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, AttributeError):
        pass  # stderr is closed: the exit code has to say it
    return code


def _one_line(text: str) -> str:
    """The text on one line, its control characters made visible: it may quote a hostile file."""
    folded = " ".join(text.splitlines())
    return "".join(c if c.isprintable() else "\ufffd" for c in folded)


def _occupy_closed_descriptors() -> None:
    """Open the null device for standard streams that whoever started the program has closed.

    The next files to be opened would take their numbers, and get whatever a library prints.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)


def _prepare_streams() -> None:
    """Let any character be printed, whatever the locale; a pipe or file always gets UTF-8."""
    if sys.stderr is None:
        # print(file=None) means stdout: notices would stand among the answers.
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is None:
            continue  # closed, or replaced by something else
        if stream.isatty():
            reconfigure(errors="replace")
        else:
            reconfigure(encoding="utf-8", errors="replace")
