from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from edge_runtime.batch_file import BatchLine, InputIndex, index_input, read_lines
from edge_runtime.batch_output import BatchOutput, is_failure, open_output
from edge_runtime.errors import StorageError, UsageError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text('{"custom_id": "a"}\n{"custom_id": "b"}\nnonsense\nnonsense\n')
    return path


@pytest.fixture
def index(source: Path) -> InputIndex:
    return index_input(source)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def answer(line: BatchLine, text: str = "x") -> dict[str, Any]:
    body = {"text": text}
    return {
        "id": line.id,
        "custom_id": line.custom_id,
        "response": {"status_code": 200, "body": body},
        "error": None,
    }


def write(target: Path, index: InputIndex, *answers: dict[str, Any]) -> None:
    with open_output(target, index, force=False) as output:
        for one in answers:
            output.append(one)


# Input


def test_lines_are_numbered_as_in_the_file_and_blank_ones_left_out(tmp_path: Path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"custom_id": "a"}\r\n\n  \n{"custom_id": "b"}')
    assert [(line.number, line.custom_id) for line in read_lines(path)] == [(1, "a"), (4, "b")]
    assert index_input(path).lines == 2


def test_an_id_follows_the_lines_content_and_not_its_place(tmp_path: Path):
    first, second = tmp_path / "1", tmp_path / "2"
    first.write_text('{"custom_id": "a"}\n{"custom_id": "b"}\n')
    second.write_text('\n{"custom_id": "b"}\n{"custom_id": "a", "x": 1}\n')
    before = {line.custom_id: line.id for line in read_lines(first)}
    after = {line.custom_id: line.id for line in read_lines(second)}
    assert before["b"] == after["b"] and before["a"] != after["a"]


def test_equal_lines_without_a_name_are_told_apart(source: Path):
    broken = [line for line in read_lines(source) if line.problem]
    assert len(broken) == 2 and broken[0].id != broken[1].id


def test_bytes_that_are_no_text_make_a_bad_line(tmp_path: Path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"custom_id": "caf\xe9"}\n{"custom_id": "ok"}\n')
    bad, good = read_lines(path)
    assert bad.problem is not None and "line 1 is not JSON" in bad.problem.message
    assert good.custom_id == "ok"


def test_an_input_is_read_as_it_is_asked_for(source: Path):
    lines = read_lines(source)
    assert next(lines).custom_id == "a"
    with source.open("a") as stream:
        stream.write('{"custom_id": "late"}\n')
    assert [line.custom_id for line in lines][-1] == "late"


def test_only_the_first_repetitions_are_named(tmp_path: Path):
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f'{{"custom_id": "q{i % 9}"}}\n' for i in range(18)))
    with pytest.raises(UsageError) as caught:
        index_input(path)
    assert "custom_id 'q0' is on lines 1, 10; " in caught.value.message
    assert caught.value.message.endswith("; and 6 more")


def test_a_pipe_is_no_input(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="is not a file"):
        index_input(pipe)


# Output


def test_what_was_appended_is_found_again(target: Path, source: Path, index: InputIndex):
    a, b, bad, _ = read_lines(source)
    failed = answer(bad) | {"response": {"status_code": 400, "body": {}}}
    write(target, index, answer(b), failed)
    with open_output(target, index, force=False) as output:
        held = output.held
    assert [held.answered[line.number] for line in (a, b, bad)] == [0, 1, 1]
    assert list(held.answered) == [0, 0, 1, 1, 0]
    assert (held.count, held.failed, held.cut_bytes) == (2, 1, 0)


def test_a_line_is_with_the_system_before_the_next(target: Path, source: Path, index: InputIndex):
    a, b, *_ = read_lines(source)
    with open_output(target, index, force=False) as output:
        output.append(answer(a))
        assert json.loads(target.read_bytes()) == answer(a)
        output.append(answer(b))
        assert target.read_bytes().count(b"\n") == 2


def test_lines_reach_the_disk_in_time_and_at_the_end(
    target: Path, source: Path, index: InputIndex, monkeypatch: pytest.MonkeyPatch
):
    a, b, *_ = read_lines(source)
    now_s, synced = [0.0], []
    monkeypatch.setattr("edge_runtime.batch_output.time.monotonic", lambda: now_s[0])
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(now_s[0]))
    with open_output(target, index, force=False) as output:
        output.append(answer(a))
        assert synced == []
        now_s[0] = 1.5
        output.sync_if_due()
        assert synced == [1.5]
        now_s[0] = 9.0
        output.sync_if_due()
        assert synced == [1.5], "there was nothing new"
        output.append(answer(b))
        assert synced == [1.5, 9.0]
    assert len(synced) == 3


@pytest.mark.parametrize("cut", range(1, 30, 4))
def test_a_line_cut_anywhere_goes_and_the_others_stay(
    target: Path, source: Path, index: InputIndex, cut: int
):
    a, b, *_ = read_lines(source)
    write(target, index, answer(a), answer(b))
    whole = target.read_bytes()
    first = whole[: whole.index(b"\n") + 1]
    for damaged in (whole[:-cut], whole[: len(first) + cut], whole[:-cut] + b"\0" * 40):
        target.write_bytes(damaged)
        with open_output(target, index, force=False) as output:
            assert (output.held.count, output.held.cut_bytes) == (1, len(damaged) - len(first))
        assert target.read_bytes() == first


def test_a_file_of_another_kind_is_not_cut(target: Path, source: Path, index: InputIndex):
    write(target, index, answer(next(read_lines(source))))
    with target.open("a") as stream:
        stream.write("a note of mine")
    kept = target.read_bytes()
    with pytest.raises(UsageError, match="its last line is not an answer"):
        open_output(target, index, force=True)
    assert target.read_bytes() == kept


def test_a_foreign_output_is_not_cut_either(target: Path, source: Path, index: InputIndex):
    a = next(read_lines(source))
    write(target, index, answer(a))
    kept = target.read_bytes() + b'{"id": "batch_req_'
    target.write_bytes(kept)
    source.write_text('{"custom_id": "other"}\n')
    with pytest.raises(UsageError, match="belongs to another input"):
        open_output(target, index_input(source), force=False)
    assert target.read_bytes() == kept


def test_answers_from_elsewhere_are_taken_by_name(target: Path, source: Path, index: InputIndex):
    elsewhere = answer(next(read_lines(source))) | {"id": "batch_req_6740a1f2c3d4e5f60718293a"}
    write(target, index, elsewhere)
    with open_output(target, index, force=False) as output:
        assert output.held.count == 1


def test_a_full_disk_leaves_whole_lines(target: Path, source: Path, index: InputIndex):
    a, b, *_ = read_lines(source)
    output = open_output(target, index, force=False)
    output.append(answer(a))
    kept = target.read_bytes()
    fill_after(output, 20)
    with pytest.raises(StorageError, match="the disk is full"):
        output.append(answer(b))
    assert target.read_bytes() == kept
    output.__exit__(None, None, None)


def fill_after(output: BatchOutput, room: int) -> None:
    """Let the output's disk take ``room`` more bytes, in pieces."""
    file, left = output._file, [room]

    class FullDisk:
        def write(self, data: memoryview) -> int:
            if not left[0]:
                raise OSError(errno.ENOSPC, "No space left on device")
            taken = min(7, left[0], len(data))
            left[0] -= taken
            return file.write(data[:taken])

        def __getattr__(self, name: str) -> Any:
            return getattr(file, name)

    output._file = FullDisk()  # type: ignore[assignment]


def test_pieces_of_a_line_are_put_together(target: Path, source: Path, index: InputIndex):
    with open_output(target, index, force=False) as output:
        fill_after(output, 10_000)
        output.append(answer(next(read_lines(source)), "日本"))
    assert json.loads(target.read_text(encoding="utf-8"))["response"]["body"] == {"text": "日本"}


def test_the_lock_is_free_again_after_a_refusal(target: Path, index: InputIndex):
    target.write_text("notes\n")
    for _ in range(2):
        with pytest.raises(UsageError, match="is no output"):
            open_output(target, index, force=False)


@pytest.mark.parametrize(
    "line, failed",
    [
        ({"response": {"status_code": 200}, "error": None}, False),
        ({"response": {"status_code": 400}, "error": None}, True),
        ({"response": None, "error": {"code": "x"}}, True),
        ({"response": None, "error": None}, True),
    ],
)
def test_a_failure_is_known(line, failed):
    assert is_failure(line) is failed
