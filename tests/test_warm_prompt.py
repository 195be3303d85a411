"""The prompt that a bundle brings along: listed, hashed, replaced whole, taken out again."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from edge_runtime.bundle import Bundle, read_manifest
from edge_runtime.errors import IntegrityError, ManifestError, StorageError
from edge_runtime.warm_prompt import drop_warm_prompt, set_warm_prompt

MANIFEST = {
    "schema_version": 1, "name": "tiny", "architecture": "none", "producer": "test",
    "dimensions": {
        "layers": 1, "heads": 1, "kv_heads": 1, "head_size": 1, "hidden_size": 1,
        "vocabulary_size": 9, "context_length": 9,
    },
    "tokenizer": {"end_token_ids": [1]},
    "graphs": [{
        "file": "g", "weights": [], "dialect": "fused", "precision": "int8", "providers": [],
        "oldest_onnxruntime": "1.23",
    }],
    "quantization": {"recipe": "auto"},
    "files": {"g": {"size_bytes": 0, "sha256":
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}},
    "source": {"format": "none", "file": "none", "sha256": "0" * 64},
    "from_a_newer_version": "kept",
}  # fmt: skip


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "bundle"
    path.mkdir()
    (path / "g").touch()
    (path / "manifest.json").write_text(json.dumps(MANIFEST))
    return path


def put(bundle: Path, text: str) -> str:
    name = set_warm_prompt(bundle, lambda path: path.write_text(text)).warm_prompt
    assert name is not None
    return name


def names(bundle: Path) -> set[str]:
    return {p.name for p in bundle.iterdir()}


def test_it_is_listed_and_hashed_like_all_of_a_bundles_files(bundle: Path):
    name = put(bundle, "one")
    opened = Bundle.open(bundle)
    assert opened.file(name).read_text() == "one"
    (bundle / name).write_text("two")
    with pytest.raises(IntegrityError, match="sha256"):
        Bundle.open(bundle)


def test_another_takes_its_place_and_leaves_nothing(bundle: Path):
    old = put(bundle, "one")
    new = put(bundle, "two")
    assert old != new
    assert names(bundle) == {"g", "manifest.json", new}
    assert set(read_manifest(bundle).files) == {"g", new}


def test_taking_it_out_gives_the_bundle_as_it_was(bundle: Path):
    put(bundle, "one")
    assert drop_warm_prompt(bundle) is True
    assert json.loads((bundle / "manifest.json").read_text()) == MANIFEST
    assert names(bundle) == {"g", "manifest.json"}
    assert drop_warm_prompt(bundle) is False


def test_what_a_newer_version_wrote_into_the_manifest_stays(bundle: Path):
    put(bundle, "one")
    plain = json.loads((bundle / "manifest.json").read_text())
    assert plain["from_a_newer_version"] == "kept"


def test_an_error_in_the_middle_leaves_the_bundle_as_it_was(bundle: Path):
    old = put(bundle, "one")

    def fail(path: Path) -> None:
        path.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        set_warm_prompt(bundle, fail)
    assert names(bundle) == {"g", "manifest.json", old}
    assert Bundle.open(bundle).manifest.warm_prompt == old


def test_what_kills_left_goes_with_the_next(bundle: Path):
    (bundle / "warm-prompt-0badcafe.kv").write_text("nobody's")
    if os.name != "nt":
        (bundle / ".warm-prompt-12345678.kv.abcd_123.part").write_text("half")
        (bundle / ".manifest.json.abcd_123.part").write_text("half")
    name = put(bundle, "one")
    assert names(bundle) == {"g", "manifest.json", name}


def test_what_the_disk_refuses_is_one_error(bundle: Path):
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    with pytest.raises(StorageError, match="cannot be changed: Permission denied"):
        set_warm_prompt(bundle, refuse)


def test_a_manifest_that_does_not_list_its_prompt_is_refused(bundle: Path):
    (bundle / "manifest.json").write_text(json.dumps(MANIFEST | {"warm_prompt": "gone.kv"}))
    with pytest.raises(ManifestError, match="warm prompt"):
        read_manifest(bundle)
