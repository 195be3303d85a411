"""Bring one file of the Hugging Face hub, continuing an interrupted download where it stopped.

The only module that imports huggingface_hub, and only inside functions. That library starts a
broken-off file again from its beginning (its partial files have names of one use), so the bytes
are read here through its file system interface, which can start anywhere. Knows no catalog and no
place in the store: it writes where it is told to.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_runtime.errors import DownloadError, EdgeRuntimeError
from edge_runtime.store.home import storage_error
from edge_runtime.store.progress import Notice, Progress, Report, format_bytes

_REACH_TIMEOUT_S = 4.0  # the library itself would retry for 23 s before it gives up
_REQUEST_TIMEOUT_S = 15.0
_PIECE_BYTES = 8 << 20  # one request each: what an interruption loses at most


@dataclass(frozen=True)
class HubFile:
    """One file of a repository; ``sha256`` and ``size_bytes`` are None where the hub tells none."""

    repo: str
    revision: str
    file: str
    size_bytes: int | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class HubRepository:
    """What the hub says of a repository at one revision (a commit)."""

    repo: str
    revision: str
    license: str | None
    files: tuple[HubFile, ...]


def describe(repo: str) -> HubRepository:
    """Ask the hub what a repository holds.

    Args:
        repo: ``ORG/REPO``.

    Raises:
        DownloadError: no such repository, or the hub cannot be reached.
    """
    library = _library()
    _reach(library)
    with _translated(library, repo):
        info = library.HfApi().model_info(repo, files_metadata=True, timeout=_REQUEST_TIMEOUT_S)
    revision = str(info.sha)
    files = tuple(
        HubFile(repo, revision, s.rfilename, s.size, s.lfs.sha256 if s.lfs else None)
        for s in info.siblings or ()
    )
    return HubRepository(repo, revision, _license_of(info), files)


def fetch(wanted: HubFile, part: Path, report: Report) -> None:
    """Download a file into ``part``, going on from what ``part`` already holds.

    Args:
        wanted: the file; its revision must be a commit, so that its bytes cannot change between
            two attempts.
        part: where the bytes go; left as it is when the download breaks off.
        report: told the progress.

    Raises:
        DownloadError: the hub cannot be reached, refuses, or the connection broke.
        StorageError: the disk is full or cannot be written.
    """
    library = _library()
    _reach(library)
    path = f"{wanted.repo}@{wanted.revision}/{wanted.file}"
    with _translated(library, f"{wanted.repo}/{wanted.file}"):
        remote = library.HfFileSystem().open(path, "rb", cache_type="none")
        with remote:
            _copy(remote, int(remote.size), part, wanted.file, report)


def _copy(remote: Any, total: int, part: Path, name: str, report: Report) -> None:
    try:
        local = part.open("ab")
    except OSError as exc:
        raise storage_error(exc, part) from exc
    with local:
        done = local.tell()
        if done > total:  # not a beginning of this file
            local.truncate(0)
            done = 0
        if done:
            report(Notice(f"going on after the {format_bytes(done)} that came before"))
        remote.seek(done)
        report(Progress(f"downloading {name}", done, total))
        while done < total:
            piece = remote.read(min(_PIECE_BYTES, total - done))
            if not piece:
                raise DownloadError(
                    f"the hub ended {name} after {done} of {total} bytes",
                    hint="run the same command again: it goes on from there",
                )
            try:
                local.write(piece)
                local.flush()
            except OSError as exc:
                raise storage_error(exc, part) from exc
            done += len(piece)
            report(Progress(f"downloading {name}", done, total))


def _library() -> Any:
    """The huggingface_hub module, with its telemetry off.

    Raises:
        DownloadError: it is not installed.
    """
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.utils
    except ModuleNotFoundError as exc:
        raise DownloadError(
            "huggingface_hub is not installed", hint="pip install huggingface_hub"
        ) from exc
    return huggingface_hub


def _reach(library: Any) -> None:
    """Find out quickly whether the hub answers at all.

    Asked through the library's own session, so that its proxies, certificates and offline switch
    count; in a thread, because looking up a name has no timeout of its own.

    Raises:
        DownloadError: it does not, within a few seconds.
    """
    outcome: list[Exception | None] = []

    def ask() -> None:
        try:
            session = library.utils.get_session()
            session.head(library.constants.ENDPOINT, timeout=_REACH_TIMEOUT_S)
            outcome.append(None)
        except Exception as exc:
            # The library has changed its HTTP client twice: no narrower type holds for all.
            outcome.append(exc)

    thread = threading.Thread(target=ask, daemon=True, name="reach-hub")
    thread.start()
    thread.join(_REACH_TIMEOUT_S)
    if not outcome:
        raise DownloadError(
            f"the Hugging Face hub did not answer within {_REACH_TIMEOUT_S:.0f} s",
            hint="check the network connection",
        )
    if outcome[0] is not None:
        raise DownloadError(
            f"the Hugging Face hub cannot be reached ({_first_line(outcome[0])})",
            hint="check the network connection",
        ) from outcome[0]


@contextmanager
def _translated(library: Any, what: str) -> Iterator[None]:
    """Turn the library's errors into DownloadError; pass this product's own through."""
    utils = library.utils
    try:
        yield
    except EdgeRuntimeError:
        raise
    except utils.GatedRepoError as exc:
        raise DownloadError(
            f"{what}: its makers ask you to accept their terms first",
            hint="accept them on the model's page, then: hf auth login",
        ) from exc
    except (utils.RepositoryNotFoundError, utils.RevisionNotFoundError) as exc:
        raise DownloadError(
            f"{what}: the hub has no such repository, or it is private",
            hint="check the spelling: hf:ORG/REPO; for a private one: hf auth login",
        ) from exc
    except (utils.EntryNotFoundError, FileNotFoundError) as exc:
        raise DownloadError(
            f"{what}: the hub has no such file",
            hint="leave :FILE out to see what there is",
        ) from exc
    except Exception as exc:
        # HTTP clients' own errors: see _reach on why no narrower type is named.
        raise DownloadError(
            f"{what}: the download broke off ({_first_line(exc)})",
            hint="run the same command again: it goes on from where it stopped",
        ) from exc


def _license_of(info: Any) -> str | None:
    tags = [tag for tag in info.tags or () if tag.startswith("license:")]
    return tags[0].removeprefix("license:") if tags else None


def _first_line(exc: Exception) -> str:
    lines = str(exc).strip().splitlines()
    return lines[0] if lines else type(exc).__name__
