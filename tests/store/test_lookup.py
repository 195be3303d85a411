from __future__ import annotations

import os
from pathlib import Path

import pytest
from store_doubles import CONTENT, KEY, use_tiny_catalog, write_bundle

from edge_runtime.errors import ManifestError, ModelNotFoundError, UnsupportedModelError
from edge_runtime.store.home import Home
from edge_runtime.store.lookup import BundleDirectory, SourceFile, StoredName, resolve


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    use_tiny_catalog(monkeypatch)
    monkeypatch.chdir(tmp_path)
    return Home(tmp_path / "store")


def put_download(home: Home, content: bytes = CONTENT) -> Path:
    path = home.catalog_downloads / "tiny-1m" / "Tiny.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


def put_file(path: Path, content: bytes = CONTENT) -> Path:
    path.write_bytes(content)
    return path


def test_a_bundle_directory_is_itself(home: Home, tmp_path: Path):
    bundle = write_bundle(tmp_path / "bundle")
    assert resolve(str(bundle), home=home) == BundleDirectory(bundle)


def test_a_gguf_file_is_a_source_with_or_without_a_recipe(home: Home, tmp_path: Path):
    file = put_file(tmp_path / "m.gguf")
    assert resolve(str(file), home=home) == SourceFile(file, None)
    assert resolve(f"{file}:int4", home=home) == SourceFile(file, "int4")


def test_a_model_directory_is_a_source_with_or_without_a_recipe(home: Home, tmp_path: Path):
    directory = tmp_path / "Model-0.5B"
    directory.mkdir()
    put_file(directory / "config.json", b"{}")
    assert resolve(str(directory), home=home) == SourceFile(directory, None)
    assert resolve(f"{directory}:int4", home=home) == SourceFile(directory, "int4")


def test_a_pulled_checkpoint_is_a_name(home: Home):
    directory = home.hub_downloads / "org" / "repo"
    directory.mkdir(parents=True)
    put_file(directory / "config.json", b"{}")
    found = resolve("hf:org/repo:int8", home=home)
    assert found == StoredName("hf:org/repo", "int8", {}, directory, None)


def test_a_gguf_file_of_another_suffix_is_known_by_its_content(home: Home, tmp_path: Path):
    file = put_file(tmp_path / "model.bin")
    assert resolve(str(file), home=home) == SourceFile(file, None)


def test_a_file_that_is_no_gguf_is_refused(home: Home, tmp_path: Path):
    file = put_file(tmp_path / "notes.txt", b"hello")
    with pytest.raises(UnsupportedModelError, match="neither"):
        resolve(str(file), home=home)


def test_a_directory_that_is_no_bundle_says_what_is_missing(home: Home, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ManifestError, match=r"manifest\.json"):
        resolve(str(tmp_path / "empty"), home=home)


def test_a_directory_that_is_no_bundle_does_not_hide_a_name(home: Home, tmp_path: Path):
    download = put_download(home)
    (tmp_path / "tiny").mkdir()
    reference = resolve("tiny", home=home)
    assert isinstance(reference, StoredName) and reference.source == download


def test_a_name_brings_its_source_and_its_bundles(home: Home):
    download = put_download(home)
    bundle = write_bundle(home.bundles / KEY / "int8")
    assert resolve("tiny", home=home) == StoredName(
        "tiny-1m", None, {"int8": bundle}, download, resolve("tiny", home=home).sha256
    )


def test_a_catalog_name_that_is_not_here_says_how_to_pull_it(home: Home):
    with pytest.raises(ModelNotFoundError, match="not on this machine yet") as caught:
        resolve("tiny", home=home)
    assert caught.value.hint == "edge-runtime pull tiny-1m"


def test_a_hub_name_that_is_not_here_says_how_to_pull_it(home: Home):
    with pytest.raises(ModelNotFoundError) as caught:
        resolve("hf:org/repo:a.gguf", home=home)
    assert caught.value.hint == "edge-runtime pull hf:org/repo:a.gguf"


def test_a_pulled_hub_repository_is_found_without_its_file(home: Home):
    folder = home.hub_downloads / "org" / "repo"
    folder.mkdir(parents=True)
    file = put_file(folder / "a.gguf")
    reference = resolve("hf:org/repo", home=home)
    assert isinstance(reference, StoredName) and reference.source == file
    put_file(folder / "b.gguf")
    with pytest.raises(ModelNotFoundError, match="name one"):
        resolve("hf:org/repo", home=home)
    assert resolve("hf:org/repo:b.gguf", home=home).source == folder / "b.gguf"


@pytest.mark.parametrize(
    "model, near",
    [("tiny-1n", "tiny-1m"), ("Tinny", "tiny"), ("models/mdoel.gguf", "models/model.gguf")],
)
def test_a_wrong_name_or_path_suggests_a_near_one(home: Home, tmp_path: Path, model, near):
    (tmp_path / "models").mkdir()
    put_file(tmp_path / "models" / "model.gguf")
    with pytest.raises(ModelNotFoundError) as caught:
        resolve(model, home=home)
    assert f"did you mean {Path(near)}" in (caught.value.hint or "")


@pytest.mark.parametrize("model", ["x" * 5000, "", "what is\nthis?", "a\0b"])
def test_what_cannot_be_a_path_is_simply_not_found(home: Home, model: str):
    with pytest.raises(ModelNotFoundError):
        resolve(model or "nothing", home=home)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused_as_what_it_is(home: Home, tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(UnsupportedModelError, match=r"pipe\.gguf is not a regular file"):
        resolve(str(tmp_path / "pipe.gguf"), home=home)
