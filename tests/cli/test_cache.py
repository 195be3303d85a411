"""Saving prompts and starting with them, as a user does."""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from edge_runtime.bundle import read_manifest
from edge_runtime.cli.main import main
from edge_runtime.engine.prefix_file import PrefixKey, write_prefix
from edge_runtime.file_hash import sha256_of_file

SYSTEM = "You keep a lighthouse. " + "Each light has a rhythm of its own. " * 12
ASK = ["--temperature", "0", "--max-tokens", "8", "--json", "Who are you?"]


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty store, which also is the folder that the tests work in."""
    store = tmp_path / "store"
    monkeypatch.setenv("EDGE_RUNTIME_HOME", str(store))
    monkeypatch.setattr("sys.stdin", None)
    monkeypatch.chdir(tmp_path)
    return store


def foreign(path: Path) -> Path:
    """A whole file of another model."""
    import numpy as np

    key = PrefixKey(("a" * 64,), "b" * 64, "auto", "float32", 1, 1, 1, "CPU", "1.32", "x86_64")
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [np.zeros((1, 2, 1), np.float32)] * 2
    write_prefix(path, key=key, model="other", producer="test", token_ids=(1, 2), arrays=rows)
    return path


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["save", "m", "--system", "x"], "say where to save it"),
        (["save", "m", "f.kv", "--name", "n", "--system", "x"], "one place only"),
        (["save", "m", "f.kv"], "there is no prompt"),
        (["save", "m", "f.kv", "--prompt-file", "none.txt"], "none.txt cannot be read"),
        (["save", "m", "f.kv", "--system", "x", "--prompt-file", "y"], "not allowed with"),
        (["save", "m", "--name", "../x", "--system", "x"], "no name for a prompt"),
        (["rm"], "say what to remove"),
        (["lst"], "no such command: lst"),
    ],
)
def test_what_makes_no_sense_is_refused_before_a_model_is_looked_for(arguments, says, capsys):
    assert main(["cache", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_the_group_shows_its_commands(capsys):
    assert main(["cache"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {command} " in out for command in ("save", "list", "inspect", "rm"))


def test_a_saved_prompt_that_is_not_there_is_refused_before_a_model_is_looked_for(capsys):
    assert main(["run", "no-model", "--prompt-cache", "none", "Hi"]) == 1
    assert "no saved prompt is called 'none'" in capsys.readouterr().err


def test_list_shows_what_is_whole_and_says_of_the_rest_why_it_is_not(store: Path, capsys):
    foreign(store / "prompts" / "good.kv")
    (store / "prompts" / "bad.kv").write_bytes(b"no such thing")
    (store / "prompts" / ".good.kv.abcd_123.part").write_bytes(b"half")
    assert main(["cache", "list"]) == 0
    out, err = capsys.readouterr()
    assert "good" in out and "other" in out and "bad" in out
    assert "bad.kv is not a saved prompt" in err and "deleted what a killed save had left" in err
    assert main(["cache", "list", "--json"]) == 0
    bad, good = json.loads(capsys.readouterr().out)
    assert (good["name"], good["tokens"], "error" in bad) == ("good", 2, True)


def test_inspect_checks_every_byte(store: Path, capsys):
    path = foreign(store / "prompts" / "good.kv")
    assert main(["cache", "inspect", "good", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["token_ids"] == [1, 2]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert main(["cache", "inspect", "good"]) == 1
    assert "damaged or was changed" in capsys.readouterr().err


def test_rm_removes_by_name(store: Path, capsys):
    path = foreign(store / "prompts" / "good.kv")
    assert main(["cache", "rm", "good"]) == 0
    assert not path.exists()
    assert main(["cache", "rm", "good"]) == 1


def answer(capsys: Any, *arguments: str) -> dict[str, Any]:
    assert main(["run", *arguments, *ASK]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


@pytest.mark.model
def test_a_saved_prompt_gives_the_same_answer_sooner(real_bundle: Path, capsys):
    model = str(real_bundle)
    cold = answer(capsys, model, "--system", SYSTEM)
    assert main(["cache", "save", model, "--name", "keeper", "--system", SYSTEM]) == 0
    capsys.readouterr()
    warm = answer(capsys, model, "--prompt-cache", "keeper")
    assert warm["text"] == cold["text"]
    assert warm["usage"]["cached_tokens"] > 100 > cold["usage"]["cached_tokens"]
    other = answer(capsys, model, "--prompt-cache", "keeper", "--system", "Be brief.")
    assert other["usage"]["cached_tokens"] < 20, "what the user says counts"


@pytest.mark.model
def test_another_models_prompt_is_refused(real_bundle: Path, store: Path, capsys):
    foreign(store / "prompts" / "other.kv")
    assert main(["run", str(real_bundle), "--prompt-cache", "other", "Hi"]) == 1
    err = capsys.readouterr().err
    assert "saved with another weights" in err and "Traceback" not in err


def of_another_version(bundle: Path, name: str) -> None:
    """Make a bundle's prompt one that another onnxruntime has evaluated, hashes and all."""
    data = (bundle / name).read_bytes()
    length = struct.unpack_from("<I", data, 8)[0]
    header = json.loads(data[16 : 16 + length])
    here = header["key"]["onnxruntime"]
    header["key"]["onnxruntime"] = here.replace(here[0], "0")
    text = json.dumps(header, ensure_ascii=False).encode()
    assert len(text) == length
    lead = data[:8] + struct.pack("<II", length, zlib.crc32(text))
    (bundle / name).write_bytes(lead + text + data[16 + length :])
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["files"][name]["sha256"] = sha256_of_file(bundle / name)
    (bundle / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.model
def test_a_bundle_brings_its_prompt_along(real_bundle: Path, tmp_path: Path, capsys):
    bundle = tmp_path / "bundle"
    shutil.copytree(real_bundle, bundle)
    assert main(["cache", "save", str(bundle), "--into-bundle", "--system", SYSTEM]) == 0
    name = read_manifest(bundle).warm_prompt
    assert name is not None
    capsys.readouterr()
    found = answer(capsys, str(bundle), "--system", SYSTEM)
    assert found["usage"]["cached_tokens"] > 100
    of_another_version(bundle, name)
    assert main(["run", str(bundle), "--system", SYSTEM, *ASK]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["usage"]["cached_tokens"] == 0
    assert "warm prompt is not used" in err and "another onnxruntime" in err
    assert main(["cache", "rm", "--from-bundle", str(bundle)]) == 0
    assert not (bundle / name).exists()
