from __future__ import annotations

from pathlib import Path

import pytest
from store_doubles import CONTENT, KEY, SHA256, use_tiny_catalog, write_bundle

from edge_runtime.errors import ModelNotFoundError, StorageError
from edge_runtime.file_hash import RememberedHashes, sha256_of_directory
from edge_runtime.store.contents import StoredKind, list_models, remove
from edge_runtime.store.home import Home
from edge_runtime.store.names import directory_key
from edge_runtime.store.progress import silent


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    use_tiny_catalog(monkeypatch)
    return Home(tmp_path / "store")


def put(path: Path, content: bytes = CONTENT) -> Path:
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


def put_download(home: Home) -> Path:
    return put(home.catalog_downloads / "tiny-1m" / "Tiny.gguf")


def names(home: Home) -> list[tuple[str, str | None]]:
    return [(model.name, model.recipe) for model in list_models(home)]


def test_an_absent_store_is_empty(home: Home):
    assert list_models(home) == ()


def test_downloads_and_bundles_are_listed_by_the_name_a_user_knows(home: Home):
    put_download(home)
    write_bundle(home.bundles / KEY / "int4")
    write_bundle(home.bundles / KEY / "auto")
    write_bundle(home.bundles / "other-01234567" / "auto")
    assert names(home) == [
        ("other-01234567", "auto"), ("tiny-1m", None), ("tiny-1m", "auto"), ("tiny-1m", "int4"),
    ]  # fmt: skip
    download = list_models(home)[1]
    assert download.kind is StoredKind.DOWNLOAD and download.size_bytes == len(CONTENT)


def test_a_hub_file_and_its_bundle_share_their_name(home: Home):
    put(home.hub_downloads / "org" / "repo" / "sub" / "Tiny-B.gguf", b"GGUF another model")
    file = home.hub_downloads / "org/repo/sub/Tiny-B.gguf"
    digest = RememberedHashes(home.hashes)(file)
    write_bundle(home.bundles / f"Tiny-B-{digest[:8]}" / "auto")
    assert names(home) == [
        ("hf:org/repo:sub/Tiny-B.gguf", None), ("hf:org/repo:sub/Tiny-B.gguf", "auto"),
    ]  # fmt: skip


def test_unfinished_things_are_not_listed(home: Home):
    put(home.partial / "tiny-1m.part")
    write_bundle(home.bundles / KEY / ".auto.part")
    (home.bundles / KEY / "int8").mkdir()
    assert names(home) == []


@pytest.mark.parametrize("name", ["tiny-1m", "tiny", "TINY-1M"])
def test_removing_a_model_takes_its_download_and_its_bundles(home: Home, name: str):
    put_download(home)
    write_bundle(home.bundles / KEY / "auto")
    write_bundle(home.bundles / "other-01234567" / "auto")
    removed = remove(name, report=silent, home=home)
    assert [(m.kind.value, m.recipe) for m in removed] == [("gguf", None), ("bundle", "auto")]
    assert names(home) == [("other-01234567", "auto")]
    assert not (home.bundles / KEY).exists() and not (home.catalog_downloads / "tiny-1m").exists()
    assert not list(home.root.glob(".trash-*"))


@pytest.mark.parametrize("name", ["tiny-1m:int4", f"{KEY}:int4"])
def test_removing_a_recipe_leaves_the_rest(home: Home, name: str):
    put_download(home)
    write_bundle(home.bundles / KEY / "auto")
    write_bundle(home.bundles / KEY / "int4")
    remove(name, report=silent, home=home)
    assert names(home) == [("tiny-1m", None), ("tiny-1m", "auto")]


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../victim", "/etc", "catalog", "partial", "bundles", "tiny-1m/..", "*"]
)
def test_names_are_never_paths(home: Home, name: str):
    put_download(home)
    victim = put(home.root.parent / "victim" / "file")
    with pytest.raises(ModelNotFoundError):
        remove(name, report=silent, home=home)
    assert victim.exists() and names(home) == [("tiny-1m", None)]


def test_a_path_given_by_the_user_is_not_removed(home: Home, tmp_path: Path):
    bundle = write_bundle(tmp_path / "mine")
    with pytest.raises(ModelNotFoundError, match="the store has no"):
        remove(str(bundle), report=silent, home=home)
    assert bundle.exists()


def test_a_link_in_the_store_is_removed_and_what_it_points_at_is_not(home: Home, tmp_path: Path):
    outside = write_bundle(tmp_path / "outside")
    (home.bundles / KEY).mkdir(parents=True)
    (home.bundles / KEY / "auto").symlink_to(outside, target_is_directory=True)
    remove("tiny-1m", report=silent, home=home)
    assert (outside / "manifest.json").is_file() and names(home) == []


def test_nothing_is_removed_through_a_link_out_of_the_store(home: Home, tmp_path: Path):
    outside = write_bundle(tmp_path / "outside" / "auto")
    home.bundles.mkdir(parents=True)
    (home.bundles / KEY).symlink_to(outside.parent, target_is_directory=True)
    with pytest.raises(StorageError, match="left alone"):
        remove("tiny-1m", report=silent, home=home)
    assert (outside / "manifest.json").is_file()


def test_a_removal_cut_short_leaves_nothing_that_looks_whole(
    home: Home, monkeypatch: pytest.MonkeyPatch
):
    write_bundle(home.bundles / KEY / "auto")

    def cut_short(*arguments: object, **named: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", cut_short)
        with pytest.raises(KeyboardInterrupt):
            remove("tiny-1m", report=silent, home=home)
    assert names(home) == []
    write_bundle(home.bundles / KEY / "int8")
    remove("tiny-1m", report=silent, home=home)
    assert not list(home.root.glob(".trash-*")), "the next removal sweeps what was left"


def test_an_unknown_name_suggests_a_near_one(home: Home):
    put_download(home)
    with pytest.raises(ModelNotFoundError) as caught:
        remove("tiny-2m", report=silent, home=home)
    assert caught.value.hint == "did you mean tiny-1m?"
    assert SHA256.startswith(KEY.rpartition("-")[2])


def test_removing_a_model_takes_what_its_killed_exports_left(home: Home):
    write_bundle(home.bundles / KEY / "auto")
    left = home.bundles / KEY / ".int4.abc.part"
    left.mkdir()
    (left / "decoder.weights").write_bytes(b"half")
    remove(KEY, report=silent, home=home)
    assert list(home.bundles.iterdir()) == []


def test_a_pulled_checkpoint_is_listed_with_its_bundle_and_removed_with_it(home: Home):
    directory = home.hub_downloads / "org" / "Tiny-0.5B"
    put(directory / "config.json", b"{}")
    (directory / "model.safetensors").write_bytes(CONTENT)
    key = directory_key(directory, sha256_of_directory(directory))
    assert key.startswith("Tiny-0.5B-")
    write_bundle(home.bundles / key / "auto")
    assert names(home) == [("hf:org/Tiny-0.5B", None), ("hf:org/Tiny-0.5B", "auto")]
    assert list_models(home)[0].kind is StoredKind.CHECKPOINT
    assert list_models(home)[0].size_bytes == len(CONTENT) + 2
    remove("hf:org/Tiny-0.5B", report=silent, home=home)
    assert list_models(home) == () and not directory.exists()
