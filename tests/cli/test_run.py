from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import scripted_program
from scripted_program import Script, installed

from edge_runtime.bundle import GenerationDefaults
from edge_runtime.cli.main import main
from edge_runtime.errors import ProviderError
from edge_runtime.guidance.grammar import Regex

GiveStdin = Callable[[bytes | None], None]
PROGRAM = [sys.executable, scripted_program.__file__]


@pytest.fixture
def script(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, give_stdin: GiveStdin
) -> Iterator[Script]:
    monkeypatch.setenv("EDGE_RUNTIME_HOME", str(tmp_path / "store"))
    give_stdin(None)
    scripted = Script()
    with installed(scripted):
        yield scripted


def environment(**script: Any) -> dict[str, str]:
    return os.environ | {"SCRIPT": json.dumps(script)}


# Prompts


def test_the_answer_goes_to_stdout_with_a_newline_and_nothing_else_does(
    script: Script, capsys: pytest.CaptureFixture[str]
):
    assert main(["run", "m", "Hi"]) == 0
    assert capsys.readouterr() == ("Hello there.\n", "")
    assert script.prompts == [[("user", "Hi")]]
    assert script.closed == 1


def test_an_answer_that_ends_in_a_newline_gets_no_second(
    script: Script, capsys: pytest.CaptureFixture[str]
):
    script.pieces = ("Done.\n",)
    main(["run", "m", "Hi"])
    assert capsys.readouterr().out == "Done.\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["m", "--seed", "1", "what is", "this"],
        ["m", "what", "is", "this", "--seed", "1"],
        ["--seed", "1", "m", "--", "what is this"],
        ["m", "--seed", "1", "--", "what is this"],
    ],
)
def test_the_prompt_is_found_among_the_options(script: Script, arguments):
    assert main(["run", *arguments]) == 0
    assert script.prompts == [[("user", "what is this")]]
    assert script.params[0].seed == 1


def test_a_prompt_that_looks_like_an_option_follows_two_dashes(script: Script):
    assert main(["run", "m", "--", "--system"]) == 0
    assert script.prompts == [[("user", "--system")]]


@pytest.mark.parametrize(
    "arguments, piped, prompt",
    [
        ([], b"from a pipe\n", "from a pipe"),
        (["Translate:"], b"bonjour\n", "Translate:\n\nbonjour"),
        (["Translate:"], b"", "Translate:"),
        ([], b"two\nlines\r\n", "two\nlines"),
        ([], b"\xef\xbb\xbfmarked", "marked"),
        ([], "日本語 🙂\n".encode(), "日本語 🙂"),
    ],
)
def test_piped_text_follows_the_argument(
    script: Script, give_stdin: GiveStdin, arguments, piped, prompt
):
    give_stdin(piped)
    assert main(["run", "m", *arguments]) == 0
    assert script.prompts == [[("user", prompt)]]


def test_a_system_message_comes_first(script: Script):
    assert main(["run", "m", "--system", "Be brief.", "Hi"]) == 0
    assert script.prompts == [[("system", "Be brief."), ("user", "Hi")]]


def test_raw_takes_the_text_as_it_is(script: Script):
    script.has_template = False
    assert main(["run", "m", "--raw", " Once upon"]) == 0
    assert script.prompts == [" Once upon"]


@pytest.mark.parametrize(
    "arguments, piped", [([], None), ([""], b""), (["  "], b"\n"), ([], b"\n")]
)
def test_an_empty_prompt_is_refused_before_anything_is_loaded(
    script: Script, give_stdin: GiveStdin, capsys, arguments, piped
):
    give_stdin(piped)
    assert main(["run", "m", *arguments]) == 2
    assert capsys.readouterr().err.startswith("error: there is no prompt\n\nhint: ")
    assert script.loaded == []


def test_input_that_is_not_utf8_is_refused_with_its_offset(
    script: Script, give_stdin: GiveStdin, capsys
):
    give_stdin(b"caf\xe9 au lait")
    assert main(["run", "m", "Translate:"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: standard input is not UTF-8: byte 0xe9 at offset 3\n\nhint: ")
    assert script.loaded == []


def test_an_argument_that_is_not_utf8_is_refused(script: Script, capsys):
    assert main(["run", "m", os.fsdecode(b"caf\xe9")]) == 2
    assert "error: the prompt is not valid text at character 3" in capsys.readouterr().err


def test_a_prompt_longer_than_the_context_names_both_counts(script: Script, capsys):
    assert main(["run", "m", "x" * 300]) == 2
    err = capsys.readouterr().err
    assert "error: the prompt has 300 tokens, and the context holds 256" in err


def test_a_model_without_a_template_says_how_to_go_on(script: Script, capsys):
    script.has_template = False
    assert main(["run", "m", "Hi"]) == 1
    assert "hint: use --raw" in capsys.readouterr().err


def test_no_onnxruntime_is_one_clear_error(script: Script, capsys):
    script.load_error = ProviderError("no onnxruntime", hint="pip install 'edge-runtime[cpu]'")
    assert main(["run", "m", "Hi"]) == 1
    err = capsys.readouterr().err
    assert err == "error: no onnxruntime\n\nhint: pip install 'edge-runtime[cpu]'\n"


# Options


def test_silence_leaves_sampling_to_the_model(script: Script):
    main(["run", "m", "Hi"])
    params = script.params[0]
    assert params.temperature == 0.25 and params.stop == () and params.max_tokens is None
    assert params.top_k == 0, "advice is not mixed with values of our own"


def test_a_model_without_advice_is_not_sampled_from_all_tokens(script: Script):
    script.advice = GenerationDefaults()
    main(["run", "m", "--top-p", "0.5", "Hi"])
    params = script.params[0]
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.7, 40, 0.5, 0.05)
    main(["run", "m", "--temperature", "0", "Hi"])
    assert script.params[1].temperature == 0


def test_every_sampling_option_arrives(script: Script):
    options = ["--max-tokens=7", "--temperature=0", "--top-p=0.5", "--top-k=9", "--min-p=0.1"]
    options += ["--typical-p=0.8", "--seed=42", "--repeat-penalty=1.5", "--ignore-eos"]
    assert main(["run", "m", *options, "--stop", "END", "--stop", "\n\n", "Hi"]) == 0
    params = script.params[0]
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k) == (7, 0, 0.5, 9)
    assert (params.min_p, params.typical_p, params.seed) == (0.1, 0.8, 42)
    assert (params.repetition_penalty, params.ignore_eos) == (1.5, True)
    assert params.stop == ("END", "\n\n")


def test_running_options_arrive(script: Script):
    assert main(["run", "m", "--context", "99", "--threads", "3", "--quant", "int4", "Hi"]) == 0
    bundle, options = script.loaded[0]
    assert bundle == Path("/bundles/m/int4")
    assert (options.context_length, options.threads) == (99, 3)


@pytest.mark.parametrize(
    "options, says",
    [
        (["--temperature", "-1"], "temperature is -1"),
        (["--max-tokens", "0"], "max_tokens is 0"),
        (["--top-p", "nan"], "top_p is nan"),
        (["--stop", ""], "empty string"),
        (["--quant", "int5"], "int5"),
        (["--logprobs", "3"], "--logprobs needs --json"),
        (["--raw", "--system", "x"], "--raw has no place for --system"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_loaded(script: Script, capsys, options, says):
    assert main(["run", "m", *options, "Hi"]) == 2
    assert says in capsys.readouterr().err
    assert script.loaded == []


# Output


def test_the_form_of_an_answer_arrives_as_a_constraint(script: Script):
    main(["run", "m", "Hi"])
    main(["run", "m", "Hi", "--regex", "a|b"])
    assert script.constraints == [None, ("constraint", Regex("a|b"))]


def test_json_is_one_object_with_everything(script: Script, capsys):
    script.pieces = ("日本", "語")
    assert main(["run", "m", "--json", "--logprobs", "2", "Hi"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1 and "日本語" in out
    said = json.loads(out)
    assert said["model"] == "scripted"
    assert (said["text"], said["finish_reason"]) == ("日本語", "stop")
    assert said["usage"] == {
        "prompt_tokens": 2, "cached_tokens": 3, "completion_tokens": 2,
        "draft_tokens": 0, "accepted_draft_tokens": 0,
    }  # fmt: skip
    assert said["timings"]["ttft_s"] == 0.125
    assert said["timings"]["decode_tokens_per_s"] == 2.0, "the first token came from the prefill"
    entry = said["logprobs"][0]
    assert (entry["token_id"], entry["token"], entry["bytes"], entry["logprob"]) == (
        ord("H"), "H", [ord("H")], -0.5,
    )  # fmt: skip
    assert [other["token"] for other in entry["top"]] == ["H", "<|end|>"]
    assert len(said["logprobs"]) == 2


@pytest.mark.parametrize(
    ("arguments", "way"), [([], "prompt-lookup"), (["--speculation", "off"], "off")]
)
def test_one_answer_at_a_time_is_drafted_for_unless_told_otherwise(script: Script, arguments, way):
    assert main(["run", "m", *arguments, "Hi"]) == 0
    assert script.loaded[0][1].speculation == way


def test_verbose_goes_to_stderr_after_the_answer(script: Script, capsys):
    assert main(["run", "m", "--verbose", "Hi there you"]) == 0
    out, err = capsys.readouterr()
    assert out == "Hello there.\n"
    assert "TTFT      125 ms" in err
    assert "prefill 90.0 tokens/s" in err and "decode 4.0 tokens/s" in err
    assert "150.0 MB resident, unknown of it anonymous" in err
    assert "17 tokens, 2.0 MB" in err


def test_pieces_are_flushed_as_they_come(script: Script, monkeypatch: pytest.MonkeyPatch):
    shown = [""]

    class Recorder(io.StringIO):
        def flush(self) -> None:
            shown.append(self.getvalue())

    out = Recorder()
    seen: list[str] = []
    script.before_piece = lambda number: seen.append(shown[-1])
    monkeypatch.setattr(sys, "stdout", out)
    main(["run", "m", "Hi"])
    assert seen == ["", "Hello", "Hello there"]


def test_control_characters_reach_a_pipe_and_not_a_terminal(
    script: Script, monkeypatch: pytest.MonkeyPatch
):
    script.pieces = ("a\x1b]0;title\x07b\tc\n",)
    for terminal, expected in ((False, "a\x1b]0;title\x07b\tc\n"), (True, "a]0;titleb\tc\n")):
        out = io.StringIO()
        monkeypatch.setattr(out, "isatty", lambda terminal=terminal: terminal, raising=False)
        monkeypatch.setattr(sys, "stdout", out)
        main(["run", "m", "Hi"])
        assert out.getvalue() == expected


# Interruption


def test_ctrl_c_stops_the_answer_keeps_it_and_gives_130(script: Script, capsys):
    def interrupt(number: int) -> None:
        if number == 2:
            raise KeyboardInterrupt

    script.before_piece = interrupt
    assert main(["run", "m", "Hi"]) == 130
    assert capsys.readouterr() == ("Hello there\n", "")
    assert (script.cancelled, script.closed) == (1, 1)


def test_ctrl_c_with_json_still_prints_what_there_is(script: Script, capsys):
    def interrupt(number: int) -> None:
        if number == 1:
            raise KeyboardInterrupt

    script.before_piece = interrupt
    assert main(["run", "m", "--json", "Hi"]) == 130
    said = json.loads(capsys.readouterr().out)
    assert (said["text"], said["finish_reason"]) == ("Hello", "cancelled")


def test_a_real_sigint_stops_a_real_program(tmp_path: Path):
    with subprocess.Popen(
        [*PROGRAM, "run", "m", "Hi"],
        env=environment(pieces=["word "] * 1000, delay_s=0.05),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as program:  # fmt: skip
        assert program.stdout is not None and program.stderr is not None
        assert program.stdout.read(5) == b"word "
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=20)
    assert (program.returncode, err) == (130, b"")
    assert out.endswith(b"\n") and len(out) < 4000


@pytest.mark.parametrize("arguments", [[], ["--verbose"]])
def test_a_reader_who_leaves_ends_it_quietly(arguments):
    with subprocess.Popen(
        [*PROGRAM, "run", "m", "Hi", *arguments],
        env=environment(pieces=["word "] * 200, delay_s=0.02),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as program:  # fmt: skip
        assert program.stdout is not None and program.stderr is not None
        assert program.stdout.read(5) == b"word "
        program.stdout.close()
        started_s = time.monotonic()
        assert program.stderr.read() == b""
    assert program.returncode == 141
    assert time.monotonic() - started_s < 3, "it stops at once, and does not talk to nobody"


def test_a_pipe_gets_utf8_whatever_the_locale():
    result = subprocess.run(
        [*PROGRAM, "run", "m", "Hi"],
        env=environment(pieces=["日本 🙂"]) | {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
        stdin=subprocess.DEVNULL, capture_output=True,
    )  # fmt: skip
    assert result.stdout.decode() == "日本 🙂\n" and result.returncode == 0


def test_a_bar_is_not_imported_for_an_answer():
    code = (
        "import sys, scripted_program as p\n"
        "from edge_runtime.cli.main import main\n"
        "with p.installed(p.Script()): main(['run', 'm', 'Hi'])\n"
        "print(sorted({'rich', 'huggingface_hub', 'edge_export'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(scripted_program.__file__).parent,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert result.stdout == "Hello there.\n[]\n"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere there is no limit")
def test_without_a_cap_the_machines_limit_holds_and_none_switches_it_off(script: Script):
    main(["run", "m", "Hi"])
    main(["run", "m", "--memory-cap", "none", "Hi"])
    main(["run", "m", "--memory-cap", "900M", "Hi"])
    found = [(options.memory_cap_bytes, options.memory_limit) for _, options in script.loaded]
    assert found[0][0] is None and found[0][1].bytes > 0
    assert found[1:] == [(None, None), (900_000_000, None)]


@pytest.mark.parametrize("command", [["run", "m", "Hi"], ["chat", "m"], ["plan", "m"]])
def test_a_cap_that_is_no_size_is_refused_before_an_export_starts(
    command: list[str], script: Script, capsys
):
    def export(*args: object, **kwargs: object) -> Path:
        pytest.fail("it began to export")

    # Not by monkeypatch, which is undone after the script and would put its double back for good.
    with patch("edge_runtime.cli.session.ensure_bundle", export):
        assert main([*command, "--memory-cap", "much"]) == 2
    assert "'much' is not a size" in capsys.readouterr().err
