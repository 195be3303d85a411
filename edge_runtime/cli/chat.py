"""Talk with a model; the conversation and what it has read are kept between turns."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from edge_runtime.cli.chat_input import Piped, Typed, read_message
from edge_runtime.cli.conversation import Conversation
from edge_runtime.cli.generation import (
    Answer,
    add_arguments,
    chosen_params,
    sampling_overrides,
    statistics,
    stream_answer,
    terminal_writer,
)
from edge_runtime.cli.main import INTERRUPTED
from edge_runtime.cli.session import Session, open_session
from edge_runtime.cli.standard_input import require_valid_unicode
from edge_runtime.engine.request import FinishReason
from edge_runtime.errors import ChatTemplateError, PromptTooLongError
from edge_runtime.generation.params import SamplingParams

HELP = '''\
/help         this text
/reset        forget the conversation; the system message stays
/system TEXT  set the system message; without TEXT, show it
/stats        speed and memory of the last answer, and how full the context is
/save FILE    write the conversation to a new JSON file
/quit         leave (also Ctrl-D, and Ctrl-C at the prompt)

A line that ends in \\ goes on in the next; """ begins a message of several lines, """ ends it.
Ctrl-C while the model answers stops the answer.'''


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Converse until the user leaves or standard input ends."""
    overrides = sampling_overrides(arguments)
    require_valid_unicode(arguments.system or "", "--system")
    typed = sys.stdin is not None and sys.stdin.isatty()
    source = Typed() if typed else Piped()
    with open_session(arguments) as session:
        params = chosen_params(session, overrides)
        system = session.system if arguments.system is None else arguments.system
        chat = Chat(session, params, system, verbose=arguments.verbose)
        if session.engine.chat_template is None:
            raise ChatTemplateError(
                f"{session.engine.manifest.name} has no chat template",
                hint="it continues texts: edge-runtime run MODEL --raw TEXT",
            )
        if source.interactive:
            _say(f"{session.engine.manifest.name}; /help for commands, Ctrl-D to leave")
        return _converse(chat, source)


def _converse(chat: Chat, source: Typed | Piped) -> int:
    failed = False
    while True:
        try:
            text = read_message(source)
        except (EOFError, KeyboardInterrupt) as exc:
            if not source.interactive and isinstance(exc, KeyboardInterrupt):
                raise
            if source.interactive:
                _say("")  # the shell's prompt goes on a line of its own
            return 1 if failed else 0
        except UnicodeDecodeError:
            _say("that was not UTF-8; say it again")
            continue
        if text.startswith("/"):
            if chat.command(text):
                return 1 if failed else 0
        elif text.strip():
            outcome = chat.turn(text)
            failed = failed or outcome is None
            if outcome is FinishReason.CANCELLED and not source.interactive:
                return INTERRUPTED  # whoever pipes a script of turns wants all of it ended


class Chat:
    """One conversation with one engine.

    Args:
        session: the loaded engine.
        params: how tokens are chosen, in every turn.
        system: the system message, if any.
        verbose: show statistics after each answer.
    """

    def __init__(
        self, session: Session, params: SamplingParams, system: str | None, *, verbose: bool
    ) -> None:
        self._session = session
        self._params = params
        self._verbose = verbose
        self._conversation = Conversation(system)
        self._last: Answer | None = None

    def turn(self, text: str) -> FinishReason | None:
        """Ask, and stream the answer; None if the conversation did not fit or was refused."""
        self._conversation.ask(text)
        write = terminal_writer()
        try:
            ids = self._session.engine.encode_chat(self._conversation.messages)
            answer = stream_answer(self._session, ids, self._params, write)
        except (PromptTooLongError, ChatTemplateError) as exc:
            self._conversation.take_back()
            too_long = isinstance(exc, PromptTooLongError)
            hint = "say less, or /reset to start again" if too_long else exc.hint
            _say(f"error: {exc.message}" + (f"\n\nhint: {hint}" if hint else ""))
            return None
        if not answer.text.endswith("\n"):
            write("\n")
        self._last = answer
        self._conversation.answer(answer.text)
        if self._is_full(answer):
            _say(
                f"the context of {self._session.engine.context_length} tokens is full: /reset to "
                "start again, or come back with a larger --context"
            )
        if self._verbose:
            _say(statistics(self._session, answer))
        return answer.finish_reason

    def command(self, line: str) -> bool:
        """Do what a line that starts with a slash says; True if it was to leave."""
        word, _, rest = line.partition(" ")
        rest = rest.strip()
        if word in ("/quit", "/exit", "/bye"):
            return True
        if word == "/help":
            _say(HELP)
        elif word == "/reset":
            self._conversation.reset()
            _say("the conversation starts again")
        elif word == "/system":
            self._set_system(rest)
        elif word == "/stats":
            self._show_statistics()
        elif word == "/save":
            self._save(rest)
        else:
            _say(f"no such command: {word} (/help shows them)")
        return False

    def _set_system(self, text: str) -> None:
        if text:
            self._conversation.system = text
            _say("the system message is set; /reset also forgets what was said so far")
        else:
            _say(self._conversation.system or "there is no system message")

    def _show_statistics(self) -> None:
        if self._last is None:
            _say("nothing was answered yet")
            return
        _say(statistics(self._session, self._last))
        usage = self._last.usage
        if usage is not None:
            held = usage.prompt_tokens + usage.completion_tokens
            _say(f"context  {held} of {self._session.engine.context_length} tokens")

    def _save(self, name: str) -> None:
        if not name:
            _say("say where: /save FILE")
            return
        try:
            self._conversation.save(Path(name), model=self._session.engine.manifest.name)
        except FileExistsError:
            _say(f"{name} exists; choose another name")
        except OSError as exc:
            _say(f"{name} cannot be written: {exc.strerror or exc}")
        else:
            _say(f"saved {name}")

    def _is_full(self, answer: Answer) -> bool:
        usage = answer.usage
        if usage is None or answer.finish_reason is not FinishReason.LENGTH:
            return False
        held = usage.prompt_tokens + usage.completion_tokens
        return held >= self._session.engine.context_length


def _say(text: str) -> None:
    """Everything but the answers goes to stderr, so that a pipe gets the answers alone."""
    print(text, file=sys.stderr, flush=True)
