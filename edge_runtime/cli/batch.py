"""Answer a file of OpenAI batch requests; a run that was ended goes on where it was.

The output gets a line for each line of the input, in the order in which answers come. A request
that cannot be answered gets an error as its line, and does not change the exit code: 0 means that
every line has its answer, and a count on stderr (and in --json) says how many are errors.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType

from edge_runtime.batch_file import BatchLine, index_input, read_lines
from edge_runtime.batch_output import BatchOutput, is_failure, open_output
from edge_runtime.cli.batch_progress import BatchProgress
from edge_runtime.cli.main import INTERRUPTED
from edge_runtime.cli.session import (
    add_model_argument,
    add_prompt_cache_argument,
    add_running_arguments,
    asked_cap,
    open_session,
)
from edge_runtime.errors import InvalidParameterError
from edge_runtime.typed_data import encode

DEFAULT_SLOTS = 4


@dataclass
class Tally:
    """What a run came to. ``seconds`` leave out the time that the model took to load."""

    requests: int
    answered_before: int
    failed: int
    answered: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    tokens_per_s: float = 0.0
    interrupted: bool = False


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.epilog = (
        "Exit code 0: every line has its answer, an error where it cannot be answered. "
        "Ctrl-C ends the run with 130; the same command goes on from there."
    )
    add_model_argument(parser)
    parser.add_argument(
        "input",
        metavar="INPUT",
        type=Path,
        help="requests, one JSON object a line: custom_id, method, url, body",
    )
    parser.add_argument(
        "output", metavar="OUTPUT", type=Path, help="answers; one that is there is gone on with"
    )
    running = add_running_arguments(parser)
    add_prompt_cache_argument(running)
    running.add_argument(
        "--slots",
        type=int,
        default=DEFAULT_SLOTS,
        metavar="N",
        help=f"sequences that the engine runs together (default: {DEFAULT_SLOTS})",
    )
    running.add_argument(
        "--parallel", type=int, metavar="N", help="requests handed to the engine (default: slots)"
    )
    parser.add_argument(
        "--force", action="store_true", help="keep answers in OUTPUT to what is not in INPUT"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON on stdout")


def run(arguments: argparse.Namespace) -> int:
    """Answer what has no answer yet; exit code 130 if Ctrl-C ended it."""
    for name in ("slots", "parallel"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise InvalidParameterError(f"--{name} is {value}", hint="use 1 or more")
    asked_cap(arguments)  # refused now if it is no size, not after an export
    index = index_input(arguments.input)
    with open_output(arguments.output, index, force=arguments.force) as output:
        held = output.held
        tally = Tally(requests=index.lines, answered_before=held.count, failed=held.failed)
        _say_what_is_held(output, tally)
        if held.count < index.lines:
            del index  # a large input's names are not needed while it runs
            _answer_all(arguments, output, tally)
    _say_summary(arguments, tally)
    return INTERRUPTED if tally.interrupted else 0


def _answer_all(arguments: argparse.Namespace, output: BatchOutput, tally: Tally) -> None:
    from edge_runtime.batch_run import BatchRun

    parallel = min(arguments.parallel or arguments.slots, tally.requests - tally.answered_before)
    lines = _unanswered(arguments.input, output)
    opening = open_session(arguments, slots=arguments.slots, at_once=max(1, parallel))
    with opening as session, _Interruption() as asked:
        run = BatchRun(session.engine, session.driver, lines, parallel=parallel)
        started_s = time.perf_counter()
        with BatchProgress(tally.requests, tally.answered_before) as progress:
            for answer in run.answers():
                if answer is not None:
                    output.append(answer.output)
                    tally.answered += 1
                    tally.failed += is_failure(answer.output)
                    if answer.usage is not None:
                        tally.prompt_tokens += answer.usage.prompt_tokens
                        tally.cached_tokens += answer.usage.cached_tokens
                        tally.completion_tokens += answer.usage.completion_tokens
                output.sync_if_due()
                if asked.to_stop and not tally.interrupted:
                    tally.interrupted = True
                    run.stop()
                speed = run.generated_tokens / max(time.perf_counter() - started_s, 1e-9)
                answered = tally.answered_before + tally.answered
                progress.update(answered, tally.failed, speed)
        tally.seconds = time.perf_counter() - started_s
        tally.tokens_per_s = tally.completion_tokens / max(tally.seconds, 1e-9)
        # All may have been answered in the moment in which Ctrl-C came.
        tally.interrupted &= tally.answered_before + tally.answered < tally.requests


def _unanswered(path: Path, output: BatchOutput) -> Iterator[BatchLine]:
    answered = output.held.answered
    known = len(answered)  # lines that were added since are a later run's
    return (n for n in read_lines(path) if n.number < known and not answered[n.number])


class _Interruption:
    """Turns the first Ctrl-C into a question that the run can answer; the second ends it at once.

    An exception could come in the middle of writing a line.
    """

    def __init__(self) -> None:
        self.to_stop = False

    def __enter__(self) -> _Interruption:
        # Whoever started the program may have it ignore Ctrl-C; only a main thread can listen.
        on_main = threading.current_thread() is threading.main_thread()
        self._before = signal.getsignal(signal.SIGINT)
        self._listens = on_main and self._before not in (signal.SIG_IGN, None)
        if self._listens:
            signal.signal(signal.SIGINT, self._ask)
        return self

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.to_stop:
            raise KeyboardInterrupt
        self.to_stop = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._listens:
            signal.signal(signal.SIGINT, self._before)


def _say_what_is_held(output: BatchOutput, tally: Tally) -> None:
    if output.held.cut_bytes:
        _say(f"{output.path}: cut off a half-written line of {output.held.cut_bytes} bytes")
    if tally.answered_before:
        _say(f"{output.path}: {tally.answered_before} of {tally.requests} requests are answered")


def _say_summary(arguments: argparse.Namespace, tally: Tally) -> None:
    answered = tally.answered_before + tally.answered
    before = f" ({tally.answered_before} of them before)" if tally.answered_before else ""
    cached = f" ({tally.cached_tokens} of them cached)" if tally.cached_tokens else ""
    _say(f"{answered} of {tally.requests} requests answered{before}, {tally.failed} failed")
    if tally.answered:
        _say(
            f"{tally.prompt_tokens} tokens in{cached}, {tally.completion_tokens} out, "
            f"{tally.seconds:.1f} s, {tally.tokens_per_s:.1f} tokens/s"
        )
    if tally.interrupted:
        _say("interrupted; the same command goes on from there")
    if arguments.json:
        print(json.dumps(encode(tally)), flush=True)


def _say(text: str) -> None:
    if sys.stderr is not None:
        print(text, file=sys.stderr, flush=True)
