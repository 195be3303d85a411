"""Where the limits of this process's control groups are, v2 and v1, from its own up to the root.

Reads /proc and /sys on Linux; knows no limit by name. Source: cgroups(7).
"""

from __future__ import annotations

from pathlib import Path


def folders_of(controller: str, *, root: Path = Path("/")) -> list[Path]:
    """The folders with the files of a controller, such as ``memory``.

    Inside a container the path is often that of the host: whoever reads skips what does not exist,
    and the mount's own root is always among them.

    Args:
        controller: its name.
        root: where /proc and /sys are, for tests.
    """
    found: list[Path] = []
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / controllers
        parts = [p for p in path.split("/") if p and p != ".."]
        found += [base.joinpath(*parts[:n]) for n in range(len(parts), -1, -1)]
    return found


def read_text(path: Path) -> str:
    """A small file's text without the blanks around it; empty where it cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
