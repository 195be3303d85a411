"""From what a user calls a model to a bundle that can be run, exporting on first use.

MODEL is a bundle directory, a .gguf file, a name in the store, ``hf:ORG/REPO[:FILE]`` that was
pulled, or a name in the catalog; any but the first may end in ``:RECIPE``. Fetches nothing: a name
that is not here is an error that says how to get it. Composes the exporter, lazily; knows nothing
of how it works.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edge_runtime.bundle import MANIFEST_NAME, read_manifest
from edge_runtime.errors import (
    ExportError,
    IntegrityError,
    ModelNotFoundError,
    UnsupportedModelError,
    UsageError,
)
from edge_runtime.file_hash import RememberedHashes
from edge_runtime.store.catalog import CatalogEntry, load_catalog, near_names
from edge_runtime.store.contents import HUB_PREFIX, StoredKind, list_models, matching
from edge_runtime.store.home import Home, make_folder
from edge_runtime.store.names import DEFAULT_RECIPE, RECIPES, Recipe, split_recipe, store_key
from edge_runtime.store.progress import Notice, Progress, Report, format_bytes

if TYPE_CHECKING:
    from edge_export.pipeline import ExportProgress, ExportReport


@dataclass(frozen=True)
class BundleDirectory:
    """A bundle that the user named by its path."""

    path: Path


@dataclass(frozen=True)
class SourceFile:
    """A .gguf file that the user named by its path."""

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
        UnsupportedModelError: a file that is not a .gguf file.
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
                _require_recipe(path, asked)
            return BundleDirectory(path)
    stored = _find_stored(name, recipe, home)
    if stored is not None:
        return stored
    path = Path(model)
    if _is_directory(path):
        read_manifest(path)  # says what a bundle would need
    raise _not_found(name, home)


def ensure_bundle(
    model: str, *, quant: Recipe | None, report: Report, home: Home | None = None
) -> Path:
    """The bundle directory of MODEL, exported into the store if this is its first use.

    Args:
        model: see the module.
        quant: the recipe; None leaves it to the name, and then to ``auto``.
        report: told about the export, if there is one.
        home: the store; this user's where it is None.

    Raises:
        ModelNotFoundError, UnsupportedModelError, ManifestError: as `resolve`.
        UsageError: a bundle of another recipe than ``quant``, or two recipes were asked for.
        IntegrityError: a pulled file was changed.
        ExportError: the source cannot become a bundle, or the exporter is not installed.
    """
    home = home or Home.find()
    reference = resolve(model, home=home)
    if isinstance(reference, BundleDirectory):
        if quant is not None:
            _require_recipe(reference.path, quant)
        return reference.path
    recipe = _one_recipe(model, reference.recipe, quant)
    if isinstance(reference, SourceFile):
        return export_into_store(reference.path, recipe or DEFAULT_RECIPE, report, home=home)
    if (recipe or DEFAULT_RECIPE) in reference.bundles:
        return reference.bundles[recipe or DEFAULT_RECIPE]
    if reference.source is not None:
        return export_into_store(
            reference.source,
            recipe or DEFAULT_RECIPE,
            report,
            home=home,
            name=reference.name,
            sha256=reference.sha256,
        )
    if recipe is None:
        return next(iter(reference.bundles.values()))
    raise ModelNotFoundError(
        f"{reference.name} is here as {', '.join(reference.bundles)}, not as {recipe}, and the "
        "file it was made from is not in the store",
        hint=f"edge-runtime pull {reference.name}"
        if load_catalog().find(reference.name)
        else "give the .gguf file itself",
    )


def export_into_store(
    source: Path,
    recipe: Recipe,
    report: Report,
    *,
    home: Home,
    name: str | None = None,
    sha256: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Export a .gguf file to its place in the store, unless it is there.

    If another process is exporting the same, waits for it and uses what it made.

    Args:
        source: the .gguf file.
        recipe: the quantization recipe.
        report: told what happens and how far it is.
        home: the store.
        name: the bundle's name; the source's own where it is None.
        sha256: what the source's hash must be, where that is known.
        overwrite: export again even if it is there.

    Raises:
        IntegrityError: the source is not what ``sha256`` says.
        ExportError: see `export_file`.
    """
    try:
        found = RememberedHashes(home.hashes)(source)
    except OSError as exc:
        raise ExportError(f"{source}: cannot be read: {exc.strerror or exc}") from exc
    if sha256 is not None and found != sha256:
        raise IntegrityError(
            f"{source}: its sha256 is {found}, and should be {sha256}",
            hint=f"it was changed or damaged: edge-runtime pull {name}",
        )
    key = store_key(source, found)
    destination = home.bundles / key / recipe
    if (destination / MANIFEST_NAME).is_file() and not overwrite:
        return destination
    lock = f"export-{key}-{recipe}"
    with home.exclusive(lock, doing=f"exporting {name or source.name}", report=report):
        # Another process may have made it while this one waited.
        if not (destination / MANIFEST_NAME).is_file() or overwrite:
            make_folder(destination.parent)
            export_file(source, destination, recipe, report, name=name, overwrite=overwrite)
    return destination


def export_file(
    source: Path,
    destination: Path,
    recipe: Recipe,
    report: Report,
    *,
    name: str | None = None,
    overwrite: bool = False,
) -> ExportReport:
    """Run the exporter.

    Raises:
        ExportError: the source cannot become a bundle, or the exporter's packages are missing.
    """
    size = format_bytes(source.stat().st_size)
    report(Notice(f"exporting {name or source.name} ({size}, {recipe}) to {destination}"))
    with exporter_required():
        from edge_export.pipeline import ExportOptions, export_gguf

        def progress(step: ExportProgress) -> None:
            report(Progress(step.stage, step.done_bytes, step.total_bytes))

        options = ExportOptions(quant=recipe, name=name, overwrite=overwrite)
        done = export_gguf(source, destination, options, progress)
    report(Notice(f"exported in {done.seconds:.1f} s"))
    return done


@contextmanager
def exporter_required() -> Iterator[None]:
    """Around code that imports the exporter: its missing packages become an ExportError.

    Raises:
        ExportError: the ``export`` extra is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as exc:
        missing = (exc.name or "").split(".")[0]
        if missing not in ("onnx", "gguf"):
            raise  # not a missing extra: a broken installation, or a bug
        raise ExportError(
            f"exporting needs the package {missing!r}, which is not installed",
            hint="pip install 'edge-runtime[export]'",
        ) from exc


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
    sources = [m.path for m in found if m.kind is StoredKind.DOWNLOAD]
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
        hint=f"give the directory that holds {MANIFEST_NAME}, or a .gguf file",
    )


def _require_recipe(path: Path, recipe: Recipe) -> None:
    found = read_manifest(path).quantization.recipe
    if found != recipe:
        raise UsageError(
            f"{path} was exported as {found}, not as {recipe}",
            hint="a bundle cannot be quantized again: export its source with --quant",
        )


def _one_recipe(model: str, named: Recipe | None, quant: Recipe | None) -> Recipe | None:
    if named is not None and quant is not None and named != quant:
        raise UsageError(
            f"{model!r} asks for {named}, and --quant for {quant}",
            hint=f"give one of them ({', '.join(RECIPES)})",
        )
    return named or quant
