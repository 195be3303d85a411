"""Where the local store is, and what lies where inside it.

::

    downloads/catalog/NAME/FILE      a catalog model, as it was pulled
    downloads/hf/ORG/REPO/FILE       a file of the Hugging Face hub
    downloads/partial/               unfinished downloads; safe to delete
    bundles/KEY/RECIPE/              what was exported on first use
    prompts/NAME.kv                  saved prompts
    locks/                           one file for each thing that two processes must not do at once
    hashes.json                      remembered sha256 of files

Makes folders when asked to; reads and writes nothing else.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from edge_runtime.errors import StorageError
from edge_runtime.store.progress import Notice, Report

HOME_VARIABLE = "EDGE_RUNTIME_HOME"


@dataclass(frozen=True)
class Home:
    """The store's root directory and the places under it."""

    root: Path

    @classmethod
    def find(
        cls, environment: Mapping[str, str] | None = None, *, platform: str = sys.platform
    ) -> Home:
        """The store of this user.

        EDGE_RUNTIME_HOME where it is set, else the platform's folder for application data:
        XDG_DATA_HOME or ``~/.local/share`` (freedesktop's Base Directory Specification, by which a
        relative XDG_DATA_HOME is ignored), LOCALAPPDATA on Windows, ``~/Library/Application
        Support`` on macOS.

        Args:
            environment: the variables to read; ``os.environ`` where it is None.
            platform: as ``sys.platform``.

        Raises:
            StorageError: EDGE_RUNTIME_HOME begins with the home of a user who has none.
        """
        variables = os.environ if environment is None else environment
        if chosen := variables.get(HOME_VARIABLE):
            return cls(_expanded(chosen).absolute())
        return cls(_data_folder(variables, platform) / "edge-runtime")

    @property
    def downloads(self) -> Path:
        """Finished downloads."""
        return self.root / "downloads"

    @property
    def catalog_downloads(self) -> Path:
        """Finished downloads of catalog models, one folder a name."""
        return self.downloads / "catalog"

    @property
    def hub_downloads(self) -> Path:
        """Finished downloads of hub files, as ORG/REPO/FILE."""
        return self.downloads / "hf"

    @property
    def partial(self) -> Path:
        """Unfinished downloads."""
        return self.downloads / "partial"

    @property
    def bundles(self) -> Path:
        """Exported bundles, as KEY/RECIPE."""
        return self.root / "bundles"

    @property
    def prompts(self) -> Path:
        """Saved prompts, one file a name."""
        return self.root / "prompts"

    @property
    def hashes(self) -> Path:
        """The memory of :class:`edge_runtime.file_hash.RememberedHashes`."""
        return self.root / "hashes.json"

    @contextmanager
    def exclusive(self, name: str, *, doing: str, report: Report) -> Iterator[None]:
        """Hold the lock called ``name`` while the block runs; wait for it, saying so.

        Args:
            name: the lock, the same in every process that does the same thing.
            doing: what the holder does, as in "another process is ``doing``".
            report: told once if there is someone to wait for.

        Raises:
            StorageError: the store cannot be written.
        """
        from filelock import FileLock, Timeout  # only commands that write need it

        folder = make_folder(self.root / "locks")
        lock = FileLock(folder / f"{name}.lock")
        try:
            try:
                lock.acquire(timeout=0)
            except Timeout:
                report(Notice(f"another process is {doing}; waiting for it"))
                lock.acquire(poll_interval=0.2)
        except OSError as exc:
            raise storage_error(exc, folder) from exc
        try:
            yield
        finally:
            lock.release()


def make_folder(path: Path) -> Path:
    """Make a folder and its parents.

    Raises:
        StorageError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise storage_error(exc, path) from exc
    return path


def storage_error(exc: OSError, path: Path) -> StorageError:
    """The error to raise ``from exc`` where writing at ``path`` failed."""
    if exc.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(
            f"the disk is full: {path}",
            hint=f"free some space (edge-runtime rm NAME), or set {HOME_VARIABLE} to another disk",
        )
    return StorageError(
        f"cannot write {path}: {exc.strerror or exc}",
        hint=f"set {HOME_VARIABLE} to a folder that can be written",
    )


def _expanded(chosen: str) -> Path:
    try:
        return Path(chosen).expanduser()
    except RuntimeError as exc:
        raise StorageError(
            f"{HOME_VARIABLE} is {chosen}: {exc}", hint=f"set {HOME_VARIABLE} to a whole path"
        ) from exc


def _data_folder(variables: Mapping[str, str], platform: str) -> Path:
    if platform == "win32":
        local = variables.get("LOCALAPPDATA")
        return Path(local) if local else Path.home() / "AppData" / "Local"
    if platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    xdg = variables.get("XDG_DATA_HOME", "")
    return Path(xdg) if xdg.startswith("/") else Path.home() / ".local" / "share"
