"""Unfinished files and folders beside their destination, and sweeping what killed processes left.

Whoever fills one holds a lock on it (flock(2)), which ends with the process: what nobody holds is
abandoned, and whoever comes next to the same destination deletes it. Windows has no such lock, and
file systems without one are left alone: there nothing is swept. Knows no bundle.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_SUFFIX = ".part"
_ASIDE = ".old"
# As tempfile names them: anything else that begins alike is somebody's own.
_OURS = re.compile(r"\.(.+)\.[a-z0-9_]{8}\.(?:part|old)")


@contextmanager
def part_folder(destination: Path) -> Iterator[Path]:
    """A new folder beside ``destination``, to be filled and renamed; deleted if it still is there.

    Sweeps first what killed processes left beside this destination.

    Raises:
        OSError: the folder cannot be made.
    """
    sweep_abandoned(destination)
    work, held = _made(destination, is_folder=True)
    try:
        yield work
    finally:
        _let_go(held)
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def part_file(destination: Path) -> Iterator[Path]:
    """As `part_folder`, with an empty file."""
    sweep_abandoned(destination)
    work, held = _made(destination, is_folder=False)
    try:
        yield work
    finally:
        _let_go(held)
        with suppress(OSError):
            work.unlink(missing_ok=True)


def aside_of(work: Path) -> Path:
    """Where the old content of a destination steps while ``work`` takes its place."""
    return work.with_suffix(_ASIDE)


def sweep_folder(folder: Path) -> list[Path]:
    """As `sweep_abandoned`, for everything that was to come into a folder."""
    try:
        found = [_OURS.fullmatch(path.name) for path in folder.iterdir()]
    except OSError:
        return []
    names = sorted({match[1] for match in found if match is not None})
    return [left for name in names for left in sweep_abandoned(folder / name)]


def sweep_abandoned(destination: Path) -> list[Path]:
    """Delete what killed processes left beside a destination.

    What had stepped aside for a replacement that never came takes its place again.

    Returns:
        What was deleted.
    """
    deleted: list[Path] = []
    if fcntl is None:
        return deleted
    with suppress(OSError):
        beside = []
        for path in destination.parent.iterdir():
            match = _OURS.fullmatch(path.name)
            if match is not None and match[1] == destination.name:
                beside.append(path)
        for aside in (p for p in beside if p.suffix == _ASIDE):
            work = aside.with_suffix(_SUFFIX)
            if not _is_held(work if work.exists() else destination):
                if not os.path.lexists(destination):
                    aside.rename(destination)
                else:
                    _delete(aside)
                    deleted.append(aside)
        for work in (p for p in beside if p.suffix == _SUFFIX):
            held = _lock(work, wait=False)
            if held is not None:
                _delete(work)
                _let_go(held)
                deleted.append(work)
    return deleted


def sync_folder(folder: Path) -> None:
    """Bring a rename in ``folder`` to the disk, where the system can."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def _prefix(destination: Path) -> str:
    return f".{destination.name}."


def _made(destination: Path, *, is_folder: bool) -> tuple[Path, int | None]:
    """A new place and its lock; None where there are no locks."""
    while True:
        folder, prefix = destination.parent, _prefix(destination)
        if is_folder:
            work = Path(tempfile.mkdtemp(dir=folder, prefix=prefix, suffix=_SUFFIX))
        else:
            number, name = tempfile.mkstemp(dir=folder, prefix=prefix, suffix=_SUFFIX)
            os.close(number)
            work = Path(name)
        held = _lock(work, wait=True)
        # A sweep may have taken it for abandoned in the moment before it was locked.
        if fcntl is None or work.exists():
            return work, held
        _let_go(held)


def _lock(path: Path, *, wait: bool) -> int | None:
    """An open descriptor that holds the lock, or None: somebody else holds it, or none can be."""
    if fcntl is None:
        return None
    number = -1
    try:
        # A link is nobody's work; a pipe would be waited for.
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.flock(number, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        if number >= 0:
            os.close(number)
        return None
    return number


def _is_held(path: Path) -> bool:
    """Whether somebody holds it; also where that cannot be known."""
    if not path.exists():
        return False
    held = _lock(path, wait=False)
    _let_go(held)
    return held is None


def _let_go(held: int | None) -> None:
    if held is not None:
        os.close(held)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
