"""A bundle may come from anyone: what opening one checks, and what it says."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge_runtime.bundle import Bundle, is_safe_relative_path, read_manifest
from edge_runtime.errors import IntegrityError, ManifestError

CONTENTS = {"decoder.onnx": b"graph", "sub/decoder.weights": b"weights" * 100}


@pytest.fixture
def plain() -> dict[str, Any]:
    """A whole manifest as JSON has it."""
    return {
        "schema_version": 1,
        "name": "tiny",
        "architecture": "llama",
        "producer": "test",
        "dimensions": {
            "layers": 1, "heads": 2, "kv_heads": 1, "head_size": 8, "hidden_size": 16,
            "vocabulary_size": 10, "context_length": 32,
        },
        "tokenizer": {"end_token_ids": [2, 9], "bos_token_id": 1, "add_bos": True},
        "graphs": [
            {
                "file": "decoder.onnx", "weights": ["sub/decoder.weights"], "dialect": "fused",
                "precision": "int8", "providers": ["CPUExecutionProvider"],
                "oldest_onnxruntime": "1.23",
            }
        ],
        "quantization": {"recipe": "int8"},
        "files": {
            name: {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in CONTENTS.items()
        },
        "source": {"format": "gguf", "file": "tiny.gguf", "sha256": "0" * 64},
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, plain: dict[str, Any]) -> Path:
    path = tmp_path / "bundle"
    for name, data in CONTENTS.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    write(path, plain)
    return path


def write(folder: Path, plain: Any) -> None:
    (folder / "manifest.json").write_text(json.dumps(plain), encoding="utf-8")


def test_a_whole_bundle_opens(folder: Path) -> None:
    bundle = Bundle.open(folder)
    assert bundle.manifest.dimensions.kv_heads == 1
    assert bundle.manifest.license is None
    assert bundle.file("sub/decoder.weights").read_bytes() == CONTENTS["sub/decoder.weights"]
    assert bundle.has("decoder.onnx")
    assert not bundle.has("manifest.json")


def test_a_file_that_the_manifest_does_not_name_is_not_given_out(folder: Path) -> None:
    (folder / "more").write_text("x")
    with pytest.raises(ManifestError, match="names no file 'more'"):
        Bundle.open(folder).file("more")


@pytest.mark.parametrize("kind", ["nothing", "an empty directory", "a file"])
def test_what_is_no_bundle_says_how_to_make_one(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "here"
    if kind == "an empty directory":
        path.mkdir()
    elif kind == "a file":
        path.write_text("GGUF")
    with pytest.raises(ManifestError, match="is not a bundle") as caught:
        Bundle.open(path)
    assert "export" in str(caught.value.hint)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1]", "3", "\x00", '{"schema_version": ' + "9" * 5000 + "}", "[" * 100_000],
)
def test_a_manifest_that_is_no_json_object_is_refused(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_text(text)
    with pytest.raises(ManifestError, match=r"manifest\.json"):
        read_manifest(folder)


def test_a_manifest_that_is_not_utf_8_is_refused(folder: Path) -> None:
    (folder / "manifest.json").write_bytes(b'{"name": "\xff"}')
    with pytest.raises(ManifestError, match="cannot be read"):
        read_manifest(folder)


def test_a_manifest_of_absurd_size_is_not_read(folder: Path) -> None:
    with (folder / "manifest.json").open("wb") as stream:
        stream.truncate(17 << 20)
    with pytest.raises(ManifestError, match="larger"):
        read_manifest(folder)


def test_a_newer_schema_says_to_upgrade(folder: Path, plain: dict[str, Any]) -> None:
    write(folder, {"schema_version": 2, "nothing": "known"})
    with pytest.raises(ManifestError, match="schema version 2") as caught:
        read_manifest(folder)
    assert "upgrade" in str(caught.value.hint)


def dimensions(**values: int) -> Callable[[dict[str, Any]], None]:
    return lambda plain: plain["dimensions"].update(values)


def tokenizer(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda plain: plain["tokenizer"].update(values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plain: plain.update(schema_version=0), "schema version 0"),
        (lambda plain: plain.pop("dimensions"), "dimensions is missing"),
        (lambda plain: plain.update(graphs=[]), "names no graph"),
        (lambda plain: plain["graphs"][0].update(file="other.onnx"), "'other.onnx'"),
        (lambda plain: plain["graphs"][0].update(weights=["other"]), "'other'"),
        (lambda plain: plain["files"]["decoder.onnx"].update(sha256="A" * 64), "not a sha256"),
        (dimensions(layers=0), "dimensions.layers is 0"),
        (dimensions(context_length=-5), "dimensions.context_length is -5"),
        (tokenizer(end_token_ids=[2, 10]), "token 10 is outside the 10 tokens"),
        (tokenizer(end_token_ids=[-1]), "token -1 is outside"),
        (tokenizer(bos_token_id=10), "token 10 is outside"),
        (tokenizer(bos_token_id=None), "no bos_token_id"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(
    folder: Path, plain: dict[str, Any], change: Callable[[dict[str, Any]], None], message: str
) -> None:
    change(plain)
    write(folder, plain)
    with pytest.raises(ManifestError, match=message):
        read_manifest(folder)


UNSAFE = [
    "", "/etc/passwd", "../secret", "sub/../../secret", "..", "C:/windows", "C:secret",
    "..\\secret", "sub\\file", "\\\\host\\share", "nul\0byte",
]  # fmt: skip


@pytest.mark.parametrize("name", UNSAFE)
def test_a_path_that_leaves_the_bundle_is_refused_before_it_is_looked_at(
    folder: Path, plain: dict[str, Any], name: str
) -> None:
    assert not is_safe_relative_path(name)
    plain["files"][name] = plain["files"]["decoder.onnx"]
    write(folder, plain)
    with pytest.raises(ManifestError, match="leaves the bundle"):
        Bundle.open(folder)


@pytest.mark.parametrize("name", ["a", "a/b", "a..b", ".hidden", "日本"])
def test_ordinary_paths_are_safe(name: str) -> None:
    assert is_safe_relative_path(name)


def test_one_changed_byte_is_found(folder: Path) -> None:
    data = bytearray(CONTENTS["sub/decoder.weights"])
    data[350] ^= 1
    (folder / "sub/decoder.weights").write_bytes(data)
    with pytest.raises(IntegrityError, match=r"decoder\.weights: its sha256"):
        Bundle.open(folder)


def test_another_size_is_found_without_hashing(folder: Path) -> None:
    (folder / "decoder.onnx").write_bytes(b"graph and more")

    def unexpected(path: Path) -> str:
        raise AssertionError(f"{path} was hashed")

    with pytest.raises(IntegrityError, match="14 bytes, and the manifest says 5"):
        Bundle.open(folder, hash_file=unexpected)


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "decoder.onnx").unlink()
    with pytest.raises(IntegrityError, match=r"decoder\.onnx: cannot be read: No such file"):
        Bundle.open(folder)


def link(at: Path, to: Path) -> None:
    at.unlink(missing_ok=True)
    try:
        at.symlink_to(to)
    except OSError:
        pytest.skip("this system makes no links")


def test_a_link_out_of_the_bundle_is_refused_though_its_content_is_right(
    folder: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(CONTENTS["decoder.onnx"])
    link(folder / "decoder.onnx", outside)
    with pytest.raises(ManifestError, match="a link that leaves the bundle"):
        Bundle.open(folder)


def test_a_link_to_itself_is_refused(folder: Path) -> None:
    link(folder / "decoder.onnx", folder / "decoder.onnx")
    with pytest.raises(IntegrityError, match="cannot be read"):
        Bundle.open(folder)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_in_place_of_a_file_is_refused_instead_of_waited_for(
    folder: Path, plain: dict[str, Any]
) -> None:
    (folder / "decoder.onnx").unlink()
    os.mkfifo(folder / "decoder.onnx")
    plain["files"]["decoder.onnx"] = {"size_bytes": 0, "sha256": hashlib.sha256().hexdigest()}
    write(folder, plain)
    with pytest.raises(IntegrityError, match="not a regular file"):
        Bundle.open(folder)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_in_place_of_the_manifest_is_refused_instead_of_waited_for(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    os.mkfifo(folder / "manifest.json")
    with pytest.raises(ManifestError, match="not a regular file"):
        read_manifest(folder)


def test_a_path_of_half_a_character_is_refused(folder: Path, plain: dict[str, Any]) -> None:
    plain["files"]["\ud800"] = plain["files"]["decoder.onnx"]
    write(folder, plain)
    with pytest.raises(ManifestError, match=r"\\ud800"):
        read_manifest(folder)
