from __future__ import annotations

from pathlib import Path

from edge_runtime.providers.cgroup import folders_of


def groups(root: Path, text: str) -> list[str]:
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/cgroup").write_text(text)
    base = root / "sys/fs/cgroup"
    return [str(folder.relative_to(base)) for folder in folders_of("memory", root=root)]


def test_a_v2_path_is_walked_up_to_the_root(tmp_path: Path):
    assert groups(tmp_path, "0::/a/b\n") == ["a/b", "a", "."]


def test_of_v1_only_the_controllers_own_line_counts(tmp_path: Path):
    text = "5:cpu,cpuacct:/x\n4:memory:/a\n"
    assert groups(tmp_path, text) == ["memory/a", "memory"]


def test_a_path_cannot_lead_out(tmp_path: Path):
    assert groups(tmp_path, "0::/../../etc\n") == ["etc", "."]


def test_without_groups_there_are_no_folders(tmp_path: Path):
    assert folders_of("memory", root=tmp_path) == []
