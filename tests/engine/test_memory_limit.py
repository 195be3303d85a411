"""What machine and container leave, and when that becomes the cap."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from edge_runtime.bundle import (
    FileEntry,
    GraphEntry,
    Manifest,
    ModelDimensions,
    Quantization,
    SourceEntry,
    TokenizerEntry,
)
from edge_runtime.engine.memory_limit import find_memory_limit, most_needed, with_cap_if_near
from edge_runtime.engine.options import EngineOptions, MemoryLimit

MB = 1_000_000
OWN = 50 * MB


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def machine(root: Path, available_kb: int, cgroup: str = "") -> None:
    write(root, proc__meminfo=f"MemTotal: 9999 kB\nMemAvailable:  {available_kb} kB\n")
    write(root, proc__self__cgroup=cgroup)


def limit(root: Path) -> MemoryLimit:
    found = find_memory_limit(root=root, own_bytes=OWN)
    assert found is not None
    return found


def test_of_the_machine_it_is_a_share_of_what_is_available_and_of_what_we_hold(tmp_path: Path):
    machine(tmp_path, 1_000_000)
    found = limit(tmp_path)
    assert found.bytes == int((1_000_000 * 1024 + OWN) * 0.8)
    assert "80%" in found.source and "1074 MB" in found.source


def test_a_v2_group_counts_and_its_page_cache_is_free(tmp_path: Path):
    machine(tmp_path, 10_000_000, "0::/a/b")
    base = tmp_path / "sys/fs/cgroup"
    write(base / "a", memory_dot_max=str(600 * MB), memory_dot_current=str(450 * MB))
    write(base / "a", memory_dot_stat=f"anon 5\ninactive_file {200 * MB}\nactive_file {100 * MB}")
    write(base / "a/b", memory_dot_max="max", memory_dot_current="7")
    # 450 less 300 of page cache, less our 50: others hold 100.
    assert limit(tmp_path).bytes == 450 * MB
    assert "90% of the 500 MB" in limit(tmp_path).source


def test_the_group_that_leaves_least_decides(tmp_path: Path):
    machine(tmp_path, 10_000_000, "0::/a/b")
    base = tmp_path / "sys/fs/cgroup"
    write(base, memory_dot_max=str(300 * MB))
    write(base / "a/b", memory_dot_max=str(600 * MB))
    assert limit(tmp_path).bytes == 270 * MB


def test_a_v1_group_counts_and_its_largest_number_is_no_limit(tmp_path: Path):
    machine(tmp_path, 10_000_000, "4:memory:/a\n2:cpu:/z")
    base = tmp_path / "sys/fs/cgroup/memory"
    write(base, memory_dot_limit_in_bytes="9223372036854771712")
    write(base / "a", memory_dot_limit_in_bytes=str(400 * MB))
    write(base / "a", memory_dot_usage_in_bytes=str(90 * MB))
    write(base / "a", memory_dot_stat=f"total_inactive_file {40 * MB}\ntotal_active_file 0")
    assert limit(tmp_path).bytes == 360 * MB


def test_a_machine_that_tells_nothing_has_no_limit(tmp_path: Path):
    assert find_memory_limit(root=tmp_path, own_bytes=OWN) is None


def manifest(weights_bytes: int) -> Manifest:
    return Manifest(
        schema_version=1, name="m", architecture="a", producer="p",
        dimensions=ModelDimensions(30, 9, 3, 64, 576, 49152, 8192),
        tokenizer=TokenizerEntry((1,)),
        graphs=(GraphEntry("g", ("w",), "fused", "int8", (), "1.23"),),
        quantization=Quantization("auto"),
        files={"g": FileEntry(1, ""), "w": FileEntry(weights_bytes, "")},
        source=SourceEntry("f", "f", ""),
    )  # fmt: skip


def test_far_below_the_limit_nothing_is_measured():
    options = EngineOptions(memory_limit=MemoryLimit(2_000 * MB, "here"))
    assert with_cap_if_near(options, manifest(150 * MB), 8192) is options


@pytest.mark.skipif(
    not (sys.platform.startswith("linux") and os.access("/proc/self/clear_refs", os.W_OK)),
    reason="a cap is kept where its counters are",
)
def test_near_the_limit_it_becomes_the_cap():
    options = EngineOptions(memory_limit=MemoryLimit(500 * MB, "here"))
    assert with_cap_if_near(options, manifest(150 * MB), 8192).memory_cap_bytes == 500 * MB
    small = manifest(20 * MB)
    assert with_cap_if_near(options, small, 2048).memory_cap_bytes is None


def test_a_cap_that_was_asked_for_stays():
    options = EngineOptions(memory_cap_bytes=7, memory_limit=MemoryLimit(1, "here"))
    assert with_cap_if_near(options, manifest(150 * MB), 8192).memory_cap_bytes == 7


def test_the_bound_grows_with_all_that_takes_memory():
    least = most_needed(manifest(100 * MB), EngineOptions(), 1024)
    for model, options, context in (
        (manifest(200 * MB), EngineOptions(), 1024),
        (manifest(100 * MB), EngineOptions(slots=4), 1024),
        (manifest(100 * MB), EngineOptions(chunk_size=512), 1024),
        (manifest(100 * MB), EngineOptions(), 8192),
    ):
        assert most_needed(model, options, context) > least
