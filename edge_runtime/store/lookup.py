"""What a user means by MODEL: a bundle directory, a source of weights, or a name.

A source is a .gguf file, or a directory as Hugging Face has it, with a config.json.

A name is one in the store, ``hf:ORG/REPO[:FILE]`` that was pulled, or one in the catalog. Any MODEL
but a bundle directory may end in ``:RECIPE``. Fetches and exports nothing: a name that is not here
is an error that says how to get it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edge_runtime.bundle import MANIFEST_NAME, read_manifest
from edge_runtime.errors import ModelNotFoundError, UnsupportedModelError, UsageError
from edge_runtime.near_names import near_names
from edge_runtime.store.catalog import CatalogEntry, load_catalog
from edge_runtime.store.contents import CONFIG_NAME, HUB_PREFIX, StoredKind, list_models, matching
from edge_runtime.store.home import Home
from edge_runtime.store.names import Recipe, split_recipe
from edge_runtime.store.progress import format_bytes


@dataclass(frozen=True)
class BundleDirectory:
    """A bundle that the user named by its path."""

    path: Path


@dataclass(frozen=True)
class SourceFile:
    """A .gguf file, or a Hugging Face directory, that the user named by its path."""

    path: Path
    recipe: Recipe | None


@dataclass(frozen=True)
class StoredName:
    """A name that the store or the catalog knows.

    Args:
        name: as it is listed.
        recipe: the one asked for in the name.
        bundles: the bundles there are, by recipe.
        source: the file to export others from; None where it is not here.
        sha256: what the source's hash must be, where the catalog says.
    """

    name: str
    recipe: Recipe | None
    bundles: dict[str, Path]
    source: Path | None
    sha256: str | None


ModelReference = BundleDirectory | SourceFile | StoredName


def resolve(model: str, *, home: Home | None = None) -> ModelReference:
    """Find what MODEL means. A path that exists wins over a name.

    Raises:
        ModelNotFoundError: nothing here is called so; the hint has near names, or how to pull it.
        UnsupportedModelError: a file that is not a .gguf file, or a pipe or a device.
        ManifestError: a directory that is not a bundle, and no name either.
    """
    home = home or Home.find()
    name, recipe = split_recipe(model)
    for text, asked in ((model, None), (name, recipe)):
        path = Path(text)
        if _is_file(path):
            return SourceFile(_require_gguf(path), asked)
        if _is_file(path / MANIFEST_NAME):
            if asked is not None:
                require_recipe(path, asked)
            return BundleDirectory(path)
        if _is_file(path / CONFIG_NAME):
            return SourceFile(path, asked)
    stored = _find_stored(name, recipe, home)
    if stored is not None:
        return stored
    path = Path(model)
    if _is_directory(path):
        read_manifest(path)  # says what a bundle would need
    if _exists(path):
        raise UnsupportedModelError(
            f"{path} is not a regular file",
            hint="a model is mapped into memory, which a pipe or a device cannot be: copy it first",
        )
    raise _not_found(name, home)


def _find_stored(name: str, recipe: Recipe | None, home: Home) -> StoredName | None:
    found = matching(list_models(home), name)
    entry = load_catalog().find(name)
    if not found and name.startswith(HUB_PREFIX) and name.count(":") == 1:
        # hf:ORG/REPO without its file: what was pulled of it, if that is one.
        pulled = [m for m in list_models(home) if m.name.startswith(f"{name}:")]
        if len({m.name for m in pulled}) > 1:
            raise ModelNotFoundError(
                f"several files of {name} are here: name one",
                hint=", ".join(dict.fromkeys(m.name for m in pulled)),
            )
        found = tuple(pulled)
    if not found:
        return None
    bundles = {m.recipe: m.path for m in found if m.recipe is not None}
    sources = [m.path for m in found if m.kind is not StoredKind.BUNDLE]
    return StoredName(
        name=found[0].name,
        recipe=recipe,
        bundles=bundles,
        source=sources[0] if sources else None,
        sha256=None if entry is None else entry.sha256,
    )


def _not_found(name: str, home: Home) -> ModelNotFoundError:
    entry: CatalogEntry | None = load_catalog().find(name)
    if entry is not None:
        size = format_bytes(entry.size_bytes)
        return ModelNotFoundError(
            f"{name} is in the catalog ({size}), but not on this machine yet",
            hint=f"edge-runtime pull {entry.name}",
        )
    if name.startswith(HUB_PREFIX):
        return ModelNotFoundError(
            f"{name} is not on this machine yet", hint=f"edge-runtime pull {name}"
        )
    path = Path(name)
    if len(path.parts) > 1 or path.suffix == ".gguf":
        siblings = _names_beside(path)
        near = [str(path.parent / n) for n in near_names(path.name, siblings)]
        message = f"no such file or directory: {name}"
    else:
        known = dict.fromkeys([*(m.name for m in list_models(home)), *load_catalog().names])
        near = near_names(name, known)
        message = f"no model is called {name!r}: not a file, not in the store, not in the catalog"
    hint = f"did you mean {' or '.join(near)}?" if near else "see: edge-runtime list"
    return ModelNotFoundError(message, hint=hint)


def _names_beside(path: Path) -> list[str]:
    try:
        return [p.name for p in path.parent.iterdir() if p.is_dir() or p.suffix == ".gguf"]
    except OSError:
        return []


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # too long for a path, or in a place that may not be looked into
        return False


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _require_gguf(path: Path) -> Path:
    if path.suffix.lower() == ".gguf":
        return path  # whether it really is one, the exporter says, and how it is broken
    try:
        with path.open("rb") as stream:
            if stream.read(4) == b"GGUF":
                return path
    except OSError as exc:
        raise UnsupportedModelError(f"{path}: cannot be read: {exc.strerror or exc}") from exc
    raise UnsupportedModelError(
        f"{path} is neither a bundle directory nor a .gguf file",
        hint=f"give the directory that holds {MANIFEST_NAME} or {CONFIG_NAME}, or a .gguf file",
    )


def require_recipe(path: Path, recipe: Recipe) -> None:
    """Check that a bundle was exported by this recipe.

    Raises:
        ManifestError: it is not a bundle.
        UsageError: it was exported by another.
    """
    found = read_manifest(path).quantization.recipe
    if found != recipe:
        raise UsageError(
            f"{path} was exported as {found}, not as {recipe}",
            hint="a bundle cannot be quantized again: export its source with --quant",
        )
