"""What the store holds, and taking things out of it.

Goes by what it finds on the disk, not by a register that could disagree with it. Removes only what
it has itself listed, so no name given by a user becomes a path. Exports and fetches nothing.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from edge_runtime.bundle import MANIFEST_NAME
from edge_runtime.errors import ModelNotFoundError, StorageError
from edge_runtime.file_hash import RememberedHashes, checkpoint_files, sha256_of_directory
from edge_runtime.near_names import near_names
from edge_runtime.store.catalog import load_catalog
from edge_runtime.store.home import Home, storage_error
from edge_runtime.store.names import directory_key, split_recipe, store_key
from edge_runtime.store.progress import Report

HUB_PREFIX = "hf:"
CONFIG_NAME = "config.json"  # what a Hugging Face directory is known by
_TRASH_PREFIX = ".trash-"


class StoredKind(str, Enum):
    """What a stored thing is."""

    DOWNLOAD = "gguf"
    CHECKPOINT = "safetensors"
    BUNDLE = "bundle"


@dataclass(frozen=True)
class StoredModel:
    """One thing in the store.

    Args:
        name: what a user calls it.
        kind: what it is.
        key: the folder under ``bundles`` that belongs to it; None for a download of which
            nothing was exported yet and whose hash is therefore not known.
        recipe: of a bundle; None for a download.
        path: the file or the bundle's directory.
        size_bytes: of all its files.
        modified_s: when it was written, seconds since the epoch.
    """

    name: str
    kind: StoredKind
    key: str | None
    recipe: str | None
    path: Path
    size_bytes: int
    modified_s: float


def list_models(home: Home | None = None) -> tuple[StoredModel, ...]:
    """Everything in the store, by name, a model's download before its bundles."""
    home = home or Home.find()
    downloads = [*_catalog_downloads(home), *_hub_downloads(home)]
    names = {d.key: d.name for d in reversed(downloads) if d.key is not None}
    names |= {store_key(Path(e.file), e.sha256): e.name for e in load_catalog().models}
    found = [*downloads, *_bundles(home, names)]
    return tuple(sorted(found, key=lambda m: (m.name, m.kind is StoredKind.BUNDLE, m.recipe or "")))


def matching(models: tuple[StoredModel, ...], name: str) -> tuple[StoredModel, ...]:
    """Those that ``name`` (a name, an alias or a key, with or without ``:RECIPE``) means."""
    bare, recipe = split_recipe(name)
    entry = load_catalog().find(bare)
    wanted = {bare} if entry is None else {bare, entry.name}
    return tuple(
        model
        for model in models
        if (model.name in wanted or (model.key == bare and model.kind is StoredKind.BUNDLE))
        and (recipe is None or model.recipe == recipe)
    )


def export_lock(key: str) -> str:
    """The name of the lock under which a source's bundles are made and removed."""
    return f"export-{key}"


def remove(name: str, *, report: Report, home: Home | None = None) -> tuple[StoredModel, ...]:
    """Take a model out of the store: its download and its bundles, or one bundle.

    Each thing is renamed away before it is deleted, so that nothing half deleted looks whole.

    Args:
        name: as `list_models` shows it; ``NAME:RECIPE`` is one bundle.
        report: told if another process has to be waited for.
        home: the store; this user's where it is None.

    Returns:
        What was removed.

    Raises:
        ModelNotFoundError: the store holds no such thing.
        StorageError: it cannot be removed.
    """
    home = home or Home.find()
    sweep(home)
    models = list_models(home)
    chosen = matching(models, name)
    if not chosen:
        near = near_names(name, dict.fromkeys(model.name for model in models))
        raise ModelNotFoundError(
            f"the store has no {name!r}",
            hint=f"did you mean {' or '.join(near)}?" if near else "see: edge-runtime list",
        )
    for model in chosen:
        lock = export_lock(model.key) if model.key else "remove"
        with home.exclusive(lock, doing=f"working on {model.name}", report=report):
            _discard(home, model.path)
            if model.key:
                sweep_exports(home.bundles / model.key)
        _drop_empty_parents(home, model.path)
    return chosen


def sweep_exports(folder: Path) -> None:
    """Delete what exports that were killed have left beside the bundles of a source.

    Args:
        folder: the source's, under ``bundles``; its export lock is held by the caller.
    """
    for left in (*folder.glob(".*.part"), *folder.glob(".*.old")):
        shutil.rmtree(left, ignore_errors=True)


def sweep(home: Home) -> None:
    """Delete what a removal that was cut short had renamed away."""
    for left in home.root.glob(f"{_TRASH_PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)


def _discard(home: Home, path: Path) -> None:
    if not path.parent.resolve().is_relative_to(home.root.resolve()):
        raise StorageError(f"{path} is reached through a link out of the store; it is left alone")
    try:
        trash = Path(tempfile.mkdtemp(prefix=_TRASH_PREFIX, dir=home.root))
        path.replace(trash / path.name)
    except OSError as exc:
        raise storage_error(exc, path) from exc
    # rmtree unlinks a symbolic link inside the trash and does not follow it.
    shutil.rmtree(trash, ignore_errors=True)


def _drop_empty_parents(home: Home, path: Path) -> None:
    stops = {home.root, home.bundles, home.downloads, home.catalog_downloads, home.hub_downloads}
    for parent in path.parents:
        if parent in stops:
            return
        try:
            parent.rmdir()
        except OSError:
            return  # not empty


def _catalog_downloads(home: Home) -> Iterator[StoredModel]:
    for entry in load_catalog().models:
        file = home.catalog_downloads / entry.name / entry.file
        if file.is_file():
            key = store_key(Path(entry.file), entry.sha256)
            yield _download(entry.name, key, file)


def _hub_downloads(home: Home) -> Iterator[StoredModel]:
    exported = {folder.name for folder in _folders(home.bundles)}
    hashes = RememberedHashes(home.hashes)
    for org in _folders(home.hub_downloads):
        for repo in _folders(org):
            for file in sorted(repo.rglob("*.[gG][gG][uU][fF]")):
                stem = store_key(Path(file.name), "")
                # Only a file with a bundle was hashed before; the others need no key.
                known = any(name.startswith(stem) for name in exported)
                key = store_key(Path(file.name), hashes(file)) if known else None
                inside = file.relative_to(repo).as_posix()
                yield _download(f"{HUB_PREFIX}{org.name}/{repo.name}:{inside}", key, file)
            if (repo / CONFIG_NAME).is_file():
                yield _checkpoint(f"{HUB_PREFIX}{org.name}/{repo.name}", repo, exported, hashes)


def _download(name: str, key: str | None, file: Path) -> StoredModel:
    status = file.stat()
    return StoredModel(name, StoredKind.DOWNLOAD, key, None, file, status.st_size, status.st_mtime)


def _checkpoint(
    name: str, directory: Path, exported: set[str], hashes: RememberedHashes
) -> StoredModel:
    stem = directory_key(directory, "")
    known = any(folder.startswith(stem) for folder in exported)
    digest = sha256_of_directory(directory, hash_file=hashes) if known else None
    return StoredModel(
        name=name,
        kind=StoredKind.CHECKPOINT,
        key=None if digest is None else directory_key(directory, digest),
        recipe=None,
        path=directory,
        size_bytes=sum(file.stat().st_size for file in checkpoint_files(directory)),
        modified_s=(directory / CONFIG_NAME).stat().st_mtime,
    )


def _bundles(home: Home, names: dict[str, str]) -> Iterator[StoredModel]:
    for folder in _folders(home.bundles):
        for bundle in _folders(folder):
            manifest = bundle / MANIFEST_NAME
            if not manifest.is_file():
                continue
            yield StoredModel(
                name=names.get(folder.name, folder.name),
                kind=StoredKind.BUNDLE,
                key=folder.name,
                recipe=bundle.name,
                path=bundle,
                size_bytes=sum(f.stat().st_size for f in bundle.rglob("*") if f.is_file()),
                modified_s=manifest.stat().st_mtime,
            )


def _folders(parent: Path) -> list[Path]:
    """The folders in a folder that may be absent; those of a dot name are nobody's business."""
    try:
        entries = sorted(parent.iterdir())
    except OSError:
        return []
    return [entry for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
