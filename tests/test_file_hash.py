from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from edge_runtime import file_hash
from edge_runtime.file_hash import RememberedHashes, sha256_of_file


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were really read, as they come."""
    read: list[Path] = []

    def counting(path: Path) -> str:
        read.append(path)
        return sha256_of_file(path)

    monkeypatch.setattr(file_hash, "sha256_of_file", counting)
    return read


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 20) + 1])
def test_the_hash_is_that_of_the_content(tmp_path: Path, size: int) -> None:
    content = b"ab" * size
    file = tmp_path / "file"
    file.write_bytes(content)
    assert sha256_of_file(file) == digest(content)


def test_an_unchanged_file_is_read_once_even_over_processes(
    tmp_path: Path, hashed: list[Path]
) -> None:
    file, memory = tmp_path / "file", tmp_path / "deep" / "hashes.json"
    file.write_bytes(b"one")
    assert RememberedHashes(memory)(file) == digest(b"one")
    assert RememberedHashes(memory)(file) == digest(b"one")
    assert hashed == [file]


def test_a_changed_file_is_read_again_and_its_old_entry_forgotten(
    tmp_path: Path, hashed: list[Path]
) -> None:
    file, memory = tmp_path / "a|b", tmp_path / "hashes.json"
    other = tmp_path / "a|c"
    other.write_bytes(b"other")
    remembered = RememberedHashes(memory)
    remembered(other)
    for content in (b"one", b"three"):
        file.write_bytes(content)
        assert remembered(file) == digest(content)
    assert hashed == [other, file, file]
    assert len(json.loads(memory.read_text())) == 2


def test_the_same_size_and_time_of_modification_do_not_hide_a_change(tmp_path: Path) -> None:
    """The time of the change of status gives it away."""
    file = tmp_path / "file"
    file.write_bytes(b"one")
    remembered = RememberedHashes(tmp_path / "hashes.json")
    remembered(file)
    before = file.stat()
    while file.stat().st_ctime_ns == before.st_ctime_ns:
        file.write_bytes(b"two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert remembered(file) == digest(b"two")


@pytest.mark.parametrize("content", ["", "no json", "[1]", '{"x": 5}', "[" * 100_000])
def test_a_damaged_memory_costs_only_time(tmp_path: Path, content: str) -> None:
    file, memory = tmp_path / "file", tmp_path / "hashes.json"
    file.write_bytes(b"one")
    memory.write_text(content)
    assert RememberedHashes(memory)(file) == digest(b"one")
    assert digest(b"one") in memory.read_text()


def test_an_entry_that_is_no_hash_is_not_believed(tmp_path: Path) -> None:
    file, memory = tmp_path / "file", tmp_path / "hashes.json"
    file.write_bytes(b"one")
    RememberedHashes(memory)(file)
    entries = json.loads(memory.read_text())
    memory.write_text(json.dumps(dict.fromkeys(entries, 5)))
    assert RememberedHashes(memory)(file) == digest(b"one")


def test_a_memory_that_cannot_be_written_costs_only_time_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"one")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(file_hash.json, "dump", full)
    assert RememberedHashes(tmp_path / "hashes.json")(file) == digest(b"one")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_file_that_changes_while_it_is_read_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, memory = tmp_path / "file", tmp_path / "hashes.json"
    file.write_bytes(b"one")

    def growing(path: Path) -> str:
        found = sha256_of_file(path)
        path.write_bytes(b"one and more")
        return found

    monkeypatch.setattr(file_hash, "sha256_of_file", growing)
    assert RememberedHashes(memory)(file) == digest(b"one")
    assert not memory.exists()


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RememberedHashes(tmp_path / "hashes.json")(tmp_path / "missing")
