from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scripted_program import Script, installed

from edge_runtime.cli import chat, chat_input
from edge_runtime.cli.main import main

GiveStdin = Callable[[bytes | None], None]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Script]:
    monkeypatch.setenv("EDGE_RUNTIME_HOME", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    scripted = Script()
    with installed(scripted):
        yield scripted


class Keyboard:
    """Lines of a user; an exception class in their place is Ctrl-C or Ctrl-D."""

    def __init__(self, *lines: str | type[BaseException]) -> None:
        self.lines = list(lines)
        self.prompts: list[str] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> Keyboard:
        terminal = io.StringIO()
        monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(sys, "stdin", terminal)
        monkeypatch.setattr("builtins.input", self)
        return self

    def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        line = self.lines.pop(0) if self.lines else EOFError
        if isinstance(line, str):
            return line
        raise line


def test_the_conversation_is_kept(script: Script, monkeypatch: pytest.MonkeyPatch, capsys):
    Keyboard("Hi", "And you?").install(monkeypatch)
    assert main(["chat", "m", "--system", "Be kind."]) == 0
    assert script.prompts[1] == [
        ("system", "Be kind."), ("user", "Hi"), ("assistant", "Hello there."), ("user", "And you?"),
    ]  # fmt: skip
    assert capsys.readouterr().out == "Hello there.\nHello there.\n"


def test_blank_lines_ask_nothing(script: Script, monkeypatch: pytest.MonkeyPatch):
    Keyboard("", "   ", "Hi").install(monkeypatch)
    main(["chat", "m"])
    assert script.prompts == [[("user", "Hi")]]


@pytest.mark.parametrize(
    "lines, message, prompts",
    [
        (["one \\", "two"], "one \ntwo", [">>> ", "... "]),
        (['"""', "one", "", "two", '"""'], "one\n\ntwo", [">>> ", "... "]),
        (['"""one', 'two"""'], "one\ntwo", [">>> ", "... "]),
        (['"""one"""'], "one", [">>> "]),
        (["one \\", EOFError], "one ", [">>> ", "... "]),
        (['"""', "one", EOFError], "one", [">>> ", "... "]),
    ],
)
def test_messages_of_several_lines(
    script: Script, monkeypatch: pytest.MonkeyPatch, lines, message, prompts
):
    keyboard = Keyboard(*lines).install(monkeypatch)
    main(["chat", "m"])
    assert script.prompts == [[("user", message)]]
    assert keyboard.prompts[: len(prompts)] == prompts


@pytest.mark.parametrize("leaving", [EOFError, KeyboardInterrupt, "/quit", "/bye"])
def test_leaving_is_no_error(script: Script, monkeypatch: pytest.MonkeyPatch, leaving):
    keyboard = Keyboard("Hi", leaving, "never read").install(monkeypatch)
    assert main(["chat", "m"]) == 0
    assert keyboard.lines == ["never read"] and script.closed == 1


def test_ctrl_c_stops_the_answer_and_not_the_chat(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys
):
    def interrupt(number: int) -> None:
        if number == 2 and len(script.prompts) == 1:
            raise KeyboardInterrupt

    script.before_piece = interrupt
    Keyboard("Hi", "Go on").install(monkeypatch)
    assert main(["chat", "m"]) == 0
    assert capsys.readouterr().out == "Hello there\nHello there.\n"
    assert script.prompts[1][1] == ("assistant", "Hello there"), "what was said is kept"


def test_an_answer_stopped_before_it_began_takes_the_question_back(
    script: Script, monkeypatch: pytest.MonkeyPatch
):
    def interrupt(number: int) -> None:
        if len(script.prompts) == 1:
            raise KeyboardInterrupt

    script.before_piece = interrupt
    Keyboard("Hi", "Hi again").install(monkeypatch)
    main(["chat", "m"])
    assert script.prompts[1] == [("user", "Hi again")]


def test_reset_forgets_all_but_the_system_message(script: Script, monkeypatch: pytest.MonkeyPatch):
    Keyboard("Hi", "/reset", "/system Be brief.", "Anew").install(monkeypatch)
    main(["chat", "m"])
    assert script.prompts[1] == [("system", "Be brief."), ("user", "Anew")]


def test_commands_answer_on_stderr(script: Script, monkeypatch: pytest.MonkeyPatch, capsys):
    Keyboard("/help", "/stats", "/system", "/frob", "Hi", "/stats").install(monkeypatch)
    main(["chat", "m"])
    out, err = capsys.readouterr()
    assert out == "Hello there.\n"
    assert chat.HELP in err
    assert "nothing was answered yet" in err and "there is no system message" in err
    assert "no such command: /frob" in err
    assert "decode 4.0 tokens/s" in err and "context  5 of 256 tokens" in err


def test_save_writes_a_new_file_and_replaces_none(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path
):
    (tmp_path / "mine.json").write_text("precious")
    commands = ["Hi", "/save", "/save mine.json", "/save no/such/folder.json", "/save talk.json"]
    Keyboard(*commands).install(monkeypatch)
    assert main(["chat", "m"]) == 0
    assert (tmp_path / "mine.json").read_text() == "precious"
    saved = json.loads((tmp_path / "talk.json").read_text(encoding="utf-8"))
    assert saved == {
        "model": "scripted",
        "messages": [
            {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello there."},
        ],
    }  # fmt: skip
    err = capsys.readouterr().err
    assert "mine.json exists" in err and "cannot be written" in err and "saved talk.json" in err


def test_a_full_context_says_what_to_do_and_keeps_the_conversation(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys
):
    script.context_length = 20
    Keyboard("Hi", "x" * 30, "ok").install(monkeypatch)
    assert main(["chat", "m"]) == 1
    err = capsys.readouterr().err
    assert "error: the prompt has 46 tokens, and the context holds 20" in err
    assert "/reset to start again" in err
    assert script.prompts[-1] == [("user", "Hi"), ("assistant", "Hello there."), ("user", "ok")]


def test_an_answer_that_fills_the_context_is_said(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys
):
    script.context_length, script.finish_reason = 5, "length"
    Keyboard("Hi").install(monkeypatch)
    main(["chat", "m"])
    assert "the context of 5 tokens is full: /reset" in capsys.readouterr().err


def test_piped_lines_are_one_turn_each(script: Script, give_stdin: GiveStdin, capsys):
    give_stdin("Hi\n/system Be brief.\n日本\n".encode())
    assert main(["chat", "m"]) == 0
    assert script.prompts == [
        [("user", "Hi")],
        [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello there."), ("user", "日本")],
    ]
    assert capsys.readouterr().out == "Hello there.\nHello there.\n", "no prompt marks in a pipe"


def test_piped_bytes_that_are_not_utf8_end_it_with_an_error(
    script: Script, give_stdin: GiveStdin, capsys
):
    give_stdin(b"Hi\ncaf\xe9\n")
    assert main(["chat", "m"]) == 2
    assert "error: standard input is not UTF-8: byte 0xe9" in capsys.readouterr().err
    assert script.closed == 1


def test_ctrl_c_with_a_pipe_ends_the_program(script: Script, give_stdin: GiveStdin):
    def interrupt(number: int) -> None:
        raise KeyboardInterrupt

    script.before_piece = interrupt
    give_stdin(b"Hi\nAgain\n")
    assert main(["chat", "m"]) == 130
    assert len(script.prompts) == 1


def test_a_model_without_a_template_cannot_chat(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys
):
    script.has_template = False
    Keyboard("Hi").install(monkeypatch)
    assert main(["chat", "m"]) == 1
    assert "hint: it continues texts: edge-runtime run MODEL --raw TEXT" in capsys.readouterr().err


def test_a_python_without_readline_can_chat(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "readline", None)
    Keyboard("Hi").install(monkeypatch)
    assert chat_input.read_message(chat_input.Typed()) == "Hi"
