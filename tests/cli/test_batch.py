from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import batch_program
import pytest
from batch_program import DEFECT, Script, installed

from edge_runtime.cli.main import main

PROGRAM = [sys.executable, batch_program.__file__]
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGE_RUNTIME_HOME", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def script() -> Iterator[Script]:
    scripted = Script()
    with installed(scripted):
        yield scripted


def chat(custom_id: str, text: str, **fields: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": f"{text}!"}], "temperature": 0, **fields}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}


def write(*lines: object, name: str = "in.jsonl") -> None:
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    Path(name).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


def batch(*options: str) -> int:
    return main(["batch", "m", "in.jsonl", "out.jsonl", *options])


def answers(name: str = "out.jsonl") -> list[dict[str, Any]]:
    text = Path(name).read_text(encoding="utf-8")
    assert not text or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def by_name() -> dict[str | None, dict[str, Any]]:
    found = answers()
    named = {answer["custom_id"]: answer for answer in found}
    assert len(named) == len(found), "an answer is there twice"
    return named


def content(answer: dict[str, Any]) -> str:
    text: str = answer["response"]["body"]["choices"][0]["message"]["content"]
    return text


# Answers


def test_a_chat_line_gets_a_whole_chat_completion(script: Script):
    write(chat("one", "hi there"))
    assert batch() == 0
    (answer,) = answers()
    assert set(answer) == {"id", "custom_id", "response", "error"}
    assert (answer["custom_id"], answer["error"]) == ("one", None)
    assert answer["response"]["status_code"] == 200 and answer["response"]["request_id"]
    body = answer["response"]["body"]
    assert body["object"] == "chat.completion" and body["model"] == "shouter"
    assert abs(body["created"] - time.time()) < 60 and body["id"].startswith("chatcmpl-")
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "HI THERE", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": 9,
        "completion_tokens": 9,
        "total_tokens": 18,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_a_completion_line_gets_a_text_completion(script: Script):
    body = {"prompt": "abcdef!", "temperature": 0, "max_tokens": 3, "logprobs": 0}
    write({"custom_id": "c", "method": "POST", "url": COMPLETION, "body": body})
    assert batch() == 0
    reply = answers()[0]["response"]["body"]
    assert reply["object"] == "text_completion" and reply["id"].startswith("cmpl-")
    choice = reply["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("ABC", "length")
    assert choice["logprobs"]["tokens"] == ["A", "B", "C"]


def test_template_arguments_reach_the_template(script: Script):
    line = chat("t", "x", chat_template_kwargs={"mark": "y!"})
    line["body"]["messages"][0]["content"] = "x"
    write(line)
    batch()
    assert content(answers()[0]) == "XY"


def test_text_of_other_scripts_stands_as_it_is(script: Script):
    write(chat("日本", "é"))
    assert batch() == 0
    assert "日本" in Path("out.jsonl").read_text(encoding="utf-8")
    assert answers()[0]["custom_id"] == "日本"


def test_a_name_that_is_no_unicode_is_given_back_as_it_came(script: Script):
    write(json.dumps(chat("\ud83d", "x")))
    assert batch() == 0
    assert answers()[0]["custom_id"] == "\ud83d"


def test_a_line_gets_as_many_answers_as_it_asks_for(script: Script):
    write(chat("a", "one", n=3), chat("b", "two", n=2, best_of=4), chat("c", "three"))
    assert batch() == 0
    bodies = {name: line["response"]["body"] for name, line in by_name().items()}
    assert [c["index"] for c in bodies["a"]["choices"]] == [0, 1, 2]
    assert {c["message"]["content"] for c in bodies["a"]["choices"]} == {"ONE"}
    assert [len(bodies[name]["choices"]) for name in "bc"] == [2, 1]
    assert bodies["b"]["choices"][0]["logprobs"] is None
    one = bodies["c"]["usage"]["completion_tokens"] - len("three") + len("one")
    assert bodies["a"]["usage"]["completion_tokens"] == 3 * one


@pytest.mark.parametrize(
    "line, custom_id, param, says",
    [
        ("nonsense", None, None, "line 2 is not JSON"),
        ("[1]", None, None, "line 2 is not a JSON object"),
        ('{"a": NaN}', None, None, "NaN"),
        ("[" * 100_000, None, None, "line 2 is not JSON"),
        ({"method": "POST", "url": CHAT, "body": {}}, None, "custom_id", "custom_id is missing"),
        (chat("b", "x") | {"custom_id": 7}, None, "custom_id", "custom_id must be a string"),
        (chat("b", "x") | {"url": "/v1/embeddings"}, "b", "url", "'/v1/embeddings'"),
        (chat("b", "x") | {"method": "GET"}, "b", "method", "'GET'"),
        ({"custom_id": "b", "method": "POST", "url": CHAT}, "b", "body", "body is missing"),
        (chat("b", "x", n=21), "b", "n", "n is 21"),
        (chat("b", "x", best_of=21), "b", "best_of", "best_of is 21"),
        (chat("b", "x", stream=True), "b", "stream", "stream is True"),
        (chat("b", "x", temperature="hot"), "b", "temperature", "temperature is 'hot'"),
        (chat("b", "x" * 70), "b", None, "71 tokens, and the context holds 64"),
        (chat("b", "x", logit_bias={"999": 1}), "b", None, "999"),
        (chat("b", "x", chat_template_kwargs={"messages": []}), "b", None, "messages"),
    ],
)
def test_a_bad_line_gets_an_error_and_the_others_their_answers(
    script: Script, capsys: pytest.CaptureFixture[str], line, custom_id, param, says
):
    write(chat("a", "before"), line, chat("z", "after"))
    assert batch() == 0
    named = by_name()
    assert (content(named["a"]), content(named["z"])) == ("BEFORE", "AFTER")
    response = named[custom_id]["response"]
    assert response["status_code"] == 400
    error = response["body"]["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert says in error["message"]
    assert "3 of 3 requests answered, 1 failed" in capsys.readouterr().err


def test_a_failed_step_is_the_error_of_its_requests_alone(script: Script):
    script.fail_at = (1,)
    write(chat("a", "first"), chat("b", "second"))
    assert batch("--slots", "1") == 0
    named = by_name()
    assert named["a"]["response"] is None
    assert named["a"]["error"] == {"code": "server_error", "message": "scripted to fail"}
    assert content(named["b"]) == "SECOND"


def test_a_defect_of_the_engine_ends_the_run_and_answers_nothing_falsely(script: Script):
    write(chat("a", "fine"), chat("b", DEFECT), chat("c", "never reached"))
    with pytest.raises(ZeroDivisionError, match="scripted defect"):
        batch("--slots", "1")
    assert set(by_name()) == {"a"}


# Slots


def rows(script: Script) -> set[int]:
    assert script.runner is not None
    return {step.token_ids.shape[0] for step in script.runner.steps}


@pytest.mark.parametrize(
    "options, slots, most_rows",
    [([], 4, 4), (["--slots", "2"], 2, 2), (["--parallel", "1"], 4, 1), (["--parallel=9"], 4, 4)],
)
def test_requests_run_together(script: Script, options: Sequence[str], slots: int, most_rows: int):
    script.delay_s = 0.002
    write(*(chat(f"q{i}", f"question {i}") for i in range(8)))
    assert batch(*options) == 0
    assert script.loaded[0][1].slots == slots
    assert max(rows(script)) == most_rows
    assert {name: content(a) for name, a in by_name().items()} == {
        f"q{i}": f"QUESTION {i}" for i in range(8)
    }


def test_a_short_answer_does_not_wait_for_a_long_one(script: Script):
    script.delay_s = 0.002
    write(chat("long", "x" * 30), chat("short", "y"))
    batch()
    assert [a["custom_id"] for a in answers()] == ["short", "long"]


def test_running_options_arrive(script: Script):
    write(chat("a", "x"))
    options = ["--context", "20", "--threads", "3", "--quant", "int4", "--memory-cap", "300M"]
    assert batch(*options) == 0
    bundle, loaded = script.loaded[0]
    assert bundle == Path("/bundles/m/int4")
    assert (loaded.context_length, loaded.threads, loaded.memory_cap_bytes) == (20, 3, 300_000_000)


# Going on


def test_what_is_answered_is_not_asked_again(script: Script, capsys):
    write(chat("a", "x"), "broken", "broken")
    assert batch() == 0
    before = Path("out.jsonl").read_bytes()
    write(chat("a", "x"), "broken", "broken")
    assert batch() == 0
    assert Path("out.jsonl").read_bytes() == before
    assert len(script.loaded) == 1, "nothing to do needs no model"
    assert "3 of 3 requests answered (3 of them before), 2 failed" in capsys.readouterr().err


def test_lines_that_were_added_are_answered(script: Script):
    write(chat("a", "x"))
    batch()
    write("", chat("new", "y"), chat("a", "x"))
    batch()
    assert [(a["custom_id"], content(a)) for a in answers()] == [("a", "X"), ("new", "Y")]


def test_a_half_written_line_is_cut_off_and_its_request_runs_again(script: Script, capsys):
    write(chat("a", "x"), chat("b", "y"))
    batch()
    whole = Path("out.jsonl").read_bytes()
    Path("out.jsonl").write_bytes(whole[:-9])
    capsys.readouterr()
    assert batch() == 0
    assert {n: content(a) for n, a in by_name().items()} == {"a": "X", "b": "Y"}
    assert "cut off a half-written line of" in capsys.readouterr().err


def start(*options: str, **script: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*PROGRAM, "batch", "m", "in.jsonl", "out.jsonl", *options],
        env=os.environ | {"SCRIPT": json.dumps(script)},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def wait_for_answers(count: int) -> None:
    deadline_s = time.monotonic() + 60
    out = Path("out.jsonl")
    while not out.exists() or out.read_bytes().count(b"\n") < count:
        assert time.monotonic() < deadline_s, "no answers came"
        time.sleep(0.005)


def test_a_killed_run_loses_no_answer_and_gives_none_twice(script: Script):
    names = [f"q{i}" for i in range(40)]
    write(*(chat(name, f"ask {name}") for name in names))
    for wanted in (3, 12):
        with start(delay_s=0.01) as program:
            wait_for_answers(wanted)
            program.send_signal(signal.SIGKILL)
        assert program.returncode == -signal.SIGKILL
    before = Path("out.jsonl").read_bytes().count(b"\n")
    assert 12 <= before < 40, "it was killed in the middle"
    assert batch() == 0
    assert Counter(a["custom_id"] for a in answers()) == Counter(names)
    assert all(content(a) == f"ASK {a['custom_id']}".upper() for a in answers())


def test_ctrl_c_ends_a_run_that_can_go_on(script: Script):
    names = [f"q{i}" for i in range(30)]
    write(*(chat(name, f"ask {name}") for name in names))
    with start("--json", delay_s=0.01) as program:
        wait_for_answers(3)
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=30)
    assert program.returncode == 130
    done = len(answers())
    assert done < 30 and all(a["response"]["status_code"] == 200 for a in answers())
    said = json.loads(out)
    assert (said["interrupted"], said["answered"]) == (True, done)
    assert b"interrupted; the same command goes on from there" in err and b"Traceback" not in err
    assert batch() == 0
    assert Counter(a["custom_id"] for a in answers()) == Counter(names)


def test_two_runs_do_not_write_one_output(script: Script, capsys):
    write(*(chat(f"q{i}", "ask") for i in range(30)))
    with start(delay_s=0.05) as program:
        wait_for_answers(1)
        assert batch() == 2
        assert "error: another process writes out.jsonl" in capsys.readouterr().err
        program.kill()
    assert batch() == 0 and len(by_name()) == 30


# What is refused


def refused(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert batch(*options) == 2
    return capsys.readouterr().err


def test_a_repeated_custom_id_is_refused_with_its_lines(script: Script, capsys):
    write(chat("a", "x"), chat("b", "y"), "", chat("a", "z"), chat("a", "x"))
    assert "in.jsonl: custom_id 'a' is on lines 1, 4, 5\n" in refused(capsys)
    assert script.loaded == [] and not Path("out.jsonl").exists()


def test_an_output_of_another_input_is_refused_unless_forced(script: Script, capsys):
    write(chat("old", "x"))
    batch()
    write(chat("new", "y"))
    kept = Path("out.jsonl").read_bytes()
    err = refused(capsys)
    assert "out.jsonl belongs to another input than in.jsonl: line 1 answers 'old'" in err
    assert "--force" in err and Path("out.jsonl").read_bytes() == kept
    assert batch("--force") == 0
    assert Path("out.jsonl").read_bytes().startswith(kept) and set(by_name()) == {"old", "new"}


def test_an_answer_to_a_line_that_was_changed_since_is_refused(script: Script, capsys):
    write(chat("a", "x"))
    batch()
    write("", chat("a", "something else"))
    assert "line 1 answers 'a', but not as the input's line 2 has it now" in refused(capsys)


@pytest.mark.parametrize("text", ["my notes", "my notes\n", "{}\n", '{"custom_id": "a"}\n'])
def test_a_file_that_is_no_output_stays_as_it_is(script: Script, capsys, text: str):
    write(chat("a", "x"))
    Path("out.jsonl").write_text(text)
    assert "out.jsonl is no output of a batch" in refused(capsys, "--force")
    assert Path("out.jsonl").read_text() == text


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["missing.jsonl", "out.jsonl"], "missing.jsonl is not a file"),
        (["in.jsonl", "in.jsonl"], "in.jsonl is the input"),
        (["in.jsonl", "."], "is not a file"),
        (["in.jsonl", "no/folder/out.jsonl"], "no/folder/out.jsonl"),
        (["in.jsonl", "out.jsonl", "--slots", "0"], "--slots is 0"),
        (["in.jsonl", "out.jsonl", "--parallel", "-1"], "--parallel is -1"),
        (["in.jsonl", "out.jsonl", "--memory-cap", "much"], "much"),
        (["in.jsonl"], "OUTPUT"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_loaded(
    script: Script, capsys, arguments, says
):
    write(chat("a", "x"))
    assert main(["batch", "m", *arguments]) == 2
    assert says in capsys.readouterr().err
    assert script.loaded == []


# Reports


def test_json_is_the_summary_on_stdout(script: Script, capsys):
    write(chat("a", "abc"), "broken")
    assert batch("--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said.pop("seconds") > 0 and said.pop("tokens_per_s") > 0
    assert said == {
        "requests": 2, "answered_before": 0, "failed": 1, "answered": 2, "prompt_tokens": 4,
        "cached_tokens": 0, "completion_tokens": 4, "interrupted": False,
    }  # fmt: skip


def test_nothing_but_json_goes_to_stdout(script: Script, capsys):
    write(chat("a", "abc"))
    batch()
    out, err = capsys.readouterr()
    assert out == "" and "4 tokens in, 4 out" in err


def test_a_log_gets_lines_now_and_then(script: Script, capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("edge_runtime.cli.batch_progress._LINE_INTERVAL_S", 0.0)
    write(chat("a", "abc"), "broken")
    batch()
    assert "2/2 requests, 1 failed, " in capsys.readouterr().err


def test_a_terminal_gets_a_bar(script: Script, monkeypatch: pytest.MonkeyPatch):
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    script.delay_s = 0.05
    write(*(chat(f"q{i}", "ask") for i in range(4)))
    batch()
    assert "0/4" in terminal.getvalue() and "tokens/s" in terminal.getvalue()


# The real model


@pytest.mark.model
def test_the_real_model_answers_six_requests_in_four_slots(real_bundle: Path):
    # Its every greedy token is well ahead of the next best, so that no rounding decides it.
    question = "Name the capital of France in one sentence."
    lines = [chat(f"q{i}", "Name a fruit", max_tokens=8 + i) for i in range(4)]
    lines.append(chat("capital", question, max_tokens=32))
    lines[-1]["body"]["messages"][0]["content"] = question
    body = {"prompt": "Once upon a time", "seed": 1, "max_tokens": 8, "logprobs": 2}
    lines.append({"custom_id": "story", "method": "POST", "url": COMPLETION, "body": body})
    write(*lines)
    found: dict[int, dict[str | None, dict[str, Any]]] = {}
    for slots in (4, 1):
        Path("out.jsonl").unlink(missing_ok=True)
        command = ["batch", str(real_bundle), "in.jsonl", "out.jsonl", "--slots", str(slots)]
        assert main(command) == 0
        found[slots] = by_name()
        assert len(found[slots]) == 6
    for named in found.values():
        assert all(a["response"]["status_code"] == 200 for a in named.values())
        story = named["story"]["response"]["body"]["choices"][0]
        assert "".join(story["logprobs"]["tokens"]) == story["text"] != ""
    assert "Paris" in content(found[4]["capital"])
    assert content(found[4]["capital"]) == content(found[1]["capital"])
