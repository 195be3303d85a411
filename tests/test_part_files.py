"""What a killed process leaves beside its destination is swept; what a living one fills is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edge_runtime.part_files import aside_of, part_file, part_folder, sweep_abandoned

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no such locks")

FILL = """
import sys
from pathlib import Path
from edge_runtime.part_files import part_folder
with part_folder(Path(sys.argv[1])) as work:
    (work / "weights").write_text("half")
    print("filling", flush=True)
    sys.stdin.read()
"""


def fill_elsewhere(destination: Path) -> subprocess.Popen[str]:
    program = subprocess.Popen(
        [sys.executable, "-c", FILL, str(destination)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert program.stdout is not None
    assert program.stdout.readline() == "filling\n"
    return program


def beside(destination: Path) -> list[str]:
    return sorted(p.suffix for p in destination.parent.iterdir())


def test_what_a_killed_process_left_is_swept_by_the_next(tmp_path: Path):
    destination = tmp_path / "bundle"
    with fill_elsewhere(destination) as program:
        program.send_signal(signal.SIGKILL)
    assert beside(destination) == [".part"]
    with part_folder(destination) as work:
        assert list(tmp_path.iterdir()) == [work]
    assert beside(destination) == []


def test_what_another_process_fills_is_left_to_it(tmp_path: Path):
    destination = tmp_path / "bundle"
    with fill_elsewhere(destination) as program:
        sweep_abandoned(destination)
        assert beside(destination) == [".part"]
        program.communicate("")
    assert (program.returncode, beside(destination)) == (0, [])


def test_what_had_stepped_aside_for_nothing_comes_back(tmp_path: Path):
    destination = tmp_path / "bundle"
    aside = aside_of(tmp_path / ".bundle.abcd_123.part")
    aside.mkdir()
    (aside / "manifest.json").write_text("old")
    (tmp_path / ".bundle.abcd_123.part").mkdir()
    sweep_abandoned(destination)
    assert (destination / "manifest.json").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]


def test_what_had_stepped_aside_for_what_is_there_is_deleted(tmp_path: Path):
    destination = tmp_path / "bundle"
    destination.mkdir()
    aside_of(tmp_path / ".bundle.abcd_123.part").mkdir()
    sweep_abandoned(destination)
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]


def test_other_names_links_and_pipes_are_not_touched(tmp_path: Path):
    destination = tmp_path / "bundle"
    (tmp_path / ".other.abcd_123.part").mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / ".bundle.link_123.part").symlink_to(elsewhere)
    (tmp_path / ".bundle.conf.old").write_text("a user's own")
    before = sorted(p.name for p in tmp_path.iterdir())
    sweep_abandoned(destination)
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_a_file_is_gone_when_it_was_not_moved(tmp_path: Path):
    with pytest.raises(KeyboardInterrupt), part_file(tmp_path / "x") as work:
        work.write_bytes(b"half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
