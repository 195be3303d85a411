from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest

from edge_runtime.providers.memory_advice import MappedFiles, keep_heap_small, trim_heap

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
SIZE = 8 << 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * (SIZE // 256))
    return path


def private_mapping(path: Path) -> mmap.mmap:
    """Mapped as onnxruntime maps external data: private and writable."""
    with path.open("rb") as stream:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)


def resident_bytes(path: Path) -> int:
    """Bytes of the file's mappings in this process."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


@linux_only
def test_pages_that_were_read_are_let_go_and_come_back(file: Path) -> None:
    mapped = MappedFiles([file])
    with mapped.opening():
        memory = private_mapping(file)
        assert sum(memory[::4096]) == 0
    assert resident_bytes(file) == SIZE
    mapped.drop_pages()
    assert resident_bytes(file) == 0
    assert memory[4097] == 1


@linux_only
def test_a_mapping_with_written_pages_is_left_alone(file: Path) -> None:
    mapped = MappedFiles([file])
    with mapped.opening():
        memory = private_mapping(file)
        memory[0] = 99
    mapped.drop_pages()
    assert memory[0] == 99


@linux_only
def test_mappings_that_were_there_before_are_left_alone(file: Path) -> None:
    earlier = private_mapping(file)
    assert sum(earlier[::4096]) == 0
    mapped = MappedFiles([file])
    with mapped.opening():
        pass
    mapped.drop_pages()
    assert resident_bytes(file) == SIZE


@linux_only
def test_nothing_is_dropped_after_closing(file: Path) -> None:
    mapped = MappedFiles([file])
    with mapped.opening():
        memory = private_mapping(file)
    with mapped.closing():
        memory.close()
    later = private_mapping(file)
    assert sum(later[::4096]) == 0
    mapped.drop_pages()
    assert resident_bytes(file) == SIZE


def test_the_advice_is_harmless_on_every_system() -> None:
    keep_heap_small()
    trim_heap()
    MappedFiles([Path("missing")]).drop_pages()
