"""The commands as programs, with the real model: from a .gguf file in the store to an answer."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edge_runtime.store.home import Home

pytestmark = pytest.mark.model
NAME = "smollm2-135m"
PROGRAM = [sys.executable, "-m", "edge_runtime"]


def new_store(root: Path, source: Path) -> Path:
    """A store that holds the download and nothing else."""
    place = Home(root).catalog_downloads / NAME / source.name
    place.parent.mkdir(parents=True)
    place.symlink_to(source)
    return root


@pytest.fixture(scope="module")
def store(real_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_store(tmp_path_factory.mktemp("store"), real_source)


def run(
    store: Path, *arguments: str, stdin: str | bytes | None = None
) -> subprocess.CompletedProcess[str]:
    data = stdin.encode() if isinstance(stdin, str) else stdin
    result = subprocess.run(
        [*PROGRAM, *arguments],
        env=os.environ | {"EDGE_RUNTIME_HOME": str(store)},
        stdin=subprocess.DEVNULL if data is None else None,
        input=data, capture_output=True, timeout=300,
    )  # fmt: skip
    return subprocess.CompletedProcess(
        result.args, result.returncode, result.stdout.decode(), result.stderr.decode()
    )


GREEDY = ("--temperature", "0", "--max-tokens", "16")
QUESTION = "Write two sentences about the sea."


def test_the_first_run_exports_and_answers_and_the_next_only_answers(store: Path):
    first = run(store, "run", f"{NAME}:int8", QUESTION, *GREEDY)
    assert first.returncode == 0 and first.stdout.endswith("\n") and len(first.stdout) > 20
    assert "exporting smollm2-135m" in first.stderr
    second = run(store, "run", f"{NAME}:int8", QUESTION, *GREEDY)
    assert (second.stdout, second.stderr) == (first.stdout, "")


def test_json_counts_what_it_says(store: Path):
    result = run(store, "run", f"{NAME}:int8", "--json", "--logprobs", "1", *GREEDY, stdin=QUESTION)
    said = json.loads(result.stdout)
    assert said["usage"]["completion_tokens"] == 16 and said["finish_reason"] == "length"
    assert "".join(entry["token"] for entry in said["logprobs"]) == said["text"]
    assert all(e["top"][0]["token_id"] == e["token_id"] for e in said["logprobs"]), "greedy"


def test_a_stop_string_is_cut_out(store: Path):
    whole = run(store, "run", f"{NAME}:int8", QUESTION, *GREEDY).stdout.rstrip("\n")
    stop = whole[8:13]
    cut = run(store, "run", f"{NAME}:int8", QUESTION, *GREEDY, "--stop", stop).stdout.rstrip("\n")
    assert cut == whole[: whole.index(stop)].rstrip("\n")


def test_a_chat_reads_only_what_is_new(store: Path):
    turns = "My name is Anna.\nSay it.\n"
    result = run(store, "chat", f"{NAME}:int8", *GREEDY, "--verbose", stdin=turns)
    assert result.returncode == 0
    assert "of them cached" in result.stderr.split("prompt")[2]


def test_a_prompt_longer_than_the_context_names_both_counts(store: Path):
    result = run(store, "run", f"{NAME}:int8", "--context", "64", stdin="word " * 500)
    assert result.returncode == 2
    assert "tokens, and the context holds 64" in result.stderr


def test_a_changed_byte_of_the_weights_is_refused(store: Path, tmp_path: Path):
    (bundle,) = Home(store).bundles.glob("*/int8")
    changed = shutil.copytree(bundle, tmp_path / "changed")
    with (changed / "decoder.weights").open("r+b") as stream:
        stream.seek(1_000_000)
        byte = stream.read(1)
        stream.seek(1_000_000)
        stream.write(bytes([byte[0] ^ 1]))
    result = run(store, "run", str(changed), QUESTION)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"error: {changed / 'decoder.weights'}: its sha256 is not")


def test_a_truncated_file_is_one_error_and_leaves_nothing(
    store: Path, real_source: Path, tmp_path: Path
):
    cut = tmp_path / "cut.gguf"
    with real_source.open("rb") as stream:
        cut.write_bytes(stream.read(3_000_000))
    result = run(store, "run", str(cut), QUESTION)
    assert result.returncode == 1 and result.stderr.startswith(f"error: {cut}: truncated")
    assert not list(Home(store).bundles.glob("cut-*"))


def test_ctrl_c_in_the_middle_of_an_export_leaves_nothing(real_source: Path, tmp_path: Path):
    store = new_store(tmp_path / "store", real_source)
    bundles = Home(store).bundles
    with subprocess.Popen(
        [*PROGRAM, "run", NAME, QUESTION],
        env=os.environ | {"EDGE_RUNTIME_HOME": str(store)},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as program:  # fmt: skip
        deadline_s = time.monotonic() + 60
        while not list(bundles.glob("*/.*/decoder.weights")):
            assert program.poll() is None and time.monotonic() < deadline_s
            time.sleep(0.02)
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=60)
    assert (program.returncode, out) == (130, b"")
    assert b"Traceback" not in err
    assert list(bundles.iterdir()) == []


def test_two_first_runs_at_once_export_once_and_answer_alike(real_source: Path, tmp_path: Path):
    store = new_store(tmp_path / "store", real_source)
    programs = [
        subprocess.Popen(
            [*PROGRAM, "run", f"{NAME}:int8", QUESTION, *GREEDY],
            env=os.environ | {"EDGE_RUNTIME_HOME": str(store)},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    (first, said), (second, heard) = [program.communicate(timeout=300) for program in programs]
    assert first == second != "" and [p.returncode for p in programs] == [0, 0]
    assert (said + heard).count("exported in") == 1
    assert "another process is exporting smollm2-135m; waiting for it" in said + heard
