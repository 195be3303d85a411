from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import edge_runtime.cli.listing
from edge_runtime.cli.main import COMMANDS, main
from edge_runtime.errors import EdgeRuntimeError, ModelNotFoundError, UsageError


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGE_RUNTIME_HOME", str(tmp_path / "store"))
    return tmp_path / "store"


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def run(arguments: object) -> Any:
        raise error

    monkeypatch.setattr(edge_runtime.cli.listing, "run", run)


def test_no_command_shows_what_there_is(capsys: pytest.CaptureFixture[str]):
    assert main([]) == 0
    out = capsys.readouterr().out
    for command in ("pull", "export", "run", "chat", "inspect", "list", "rm"):
        assert f"  {command} " in out


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]):
    for command in COMMANDS:
        with pytest.raises(SystemExit) as ended:
            main([command, "--help"])
        assert ended.value.code == 0
        assert f"edge-runtime {command}" in capsys.readouterr().out


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"edge-runtime {edge_runtime.__version__}\n"


@pytest.mark.parametrize("wrong, near", [("lst", "list"), ("puul", "pull"), ("exprt", "export")])
def test_an_unknown_command_suggests_a_near_one(wrong, near, capsys: pytest.CaptureFixture[str]):
    assert main([wrong]) == 2
    assert capsys.readouterr().err == (
        f"error: no such command: {wrong}\n\nhint: did you mean {near}?\n"
    )


@pytest.mark.parametrize(
    "arguments", [["run"], ["list", "--jsn"], ["rm"], ["run", "m", "--seed", "x"], ["--frob"]]
)
def test_wrong_arguments_are_a_usage_error(arguments, capsys: pytest.CaptureFixture[str]):
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and "\n\nhint: see: edge-runtime" in err


@pytest.mark.parametrize(
    "error, code, shown",
    [
        (UsageError("bad", hint="better"), 2, "error: bad\n\nhint: better\n"),
        (ModelNotFoundError("gone"), 1, "error: gone\n"),
        (EdgeRuntimeError("broken", hint="mend it"), 1, "error: broken\n\nhint: mend it\n"),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(), 141, ""),
    ],
)
def test_errors_become_one_line_and_an_exit_code(
    error, code, shown, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    fail_with(monkeypatch, error)
    assert main(["list"]) == code
    assert capsys.readouterr().err == shown


@pytest.mark.parametrize(
    "error, says",
    [
        (MemoryError(), "error: out of memory"),
        (OSError(errno.ENOSPC, "No space left", "/data/x"), "error: the disk is full: /data/x"),
    ],
)
def test_exhausted_resources_are_said_plainly(
    error, says, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    fail_with(monkeypatch, error)
    assert main(["list"]) == 1
    assert capsys.readouterr().err.startswith(f"{says}\n\nhint: ")


@pytest.mark.parametrize("error", [ValueError("a bug"), OSError(errno.EIO, "input/output")])
def test_a_bug_keeps_its_traceback(error, monkeypatch: pytest.MonkeyPatch):
    fail_with(monkeypatch, error)
    with pytest.raises(type(error)):
        main(["list"])


def test_the_program_and_the_module_are_the_same(store: Path):
    result = subprocess.run(
        [sys.executable, "-m", "edge_runtime", "lisst"], capture_output=True, text=True
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "error: no such command: lisst\n\nhint: did you mean list?\n"


def test_a_command_imports_only_what_it_needs():
    script = """
import sys
from edge_runtime.cli.main import main
assert main(["list"]) == 0
loaded = {m.split(".")[0] for m in sys.modules}
print(sorted(loaded & {"rich", "numpy", "onnxruntime", "huggingface_hub", "tokenizers", "jinja2"}))
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_output_that_cannot_be_written_is_an_error_and_no_traceback():
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "edge_runtime", "list", "--json"],
            stdout=full, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert result.returncode == 1
    assert result.stderr.startswith("error: the disk is full")
    assert "Traceback" not in result.stderr and "Exception ignored" not in result.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_bug(closed: str):
    command = f'"{sys.executable}" -m edge_runtime list --json {closed}'
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


def test_an_error_that_quotes_a_hostile_file_stays_one_plain_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    fail_with(monkeypatch, EdgeRuntimeError("it said: no\nway \x1b]0;title\x07", hint="a\r\nb"))
    assert main(["list"]) == 1
    assert capsys.readouterr().err == ("error: it said: no way \ufffd]0;title\ufffd\n\nhint: a b\n")


def test_notices_of_a_program_without_stderr_do_not_stand_among_its_output():
    command = f'"{sys.executable}" -m edge_runtime list 2>&-'
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "")


def test_no_file_takes_the_number_of_a_closed_standard_stream():
    script = (
        "import os, sys, edge_runtime.cli.listing as listing; "
        "from edge_runtime.cli.main import entry_point; "
        "listing.run = lambda arguments: print(os.open(os.devnull, os.O_RDONLY)); "
        "sys.argv[1:] = ['list']; entry_point()"
    )
    command = f'"{sys.executable}" -c "{script}" <&- 2>&-'
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert int(result.stdout) > 2


def test_a_text_that_cannot_be_read_is_refused_before_anything_slow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("gguf", reason="needs the export extra")
    missing = tmp_path / "missing.txt"
    assert main(["eval", "no-such-model", "--text", str(missing)]) == 2
    assert str(missing) in capsys.readouterr().err


@pytest.mark.parametrize("command", ["bench", "eval"])
def test_measuring_a_model_that_is_not_there_says_so(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setenv("EDGE_RUNTIME_HOME", str(tmp_path))
    assert main([command, "no-such-model"]) == 1
    assert "no-such-model" in capsys.readouterr().err
