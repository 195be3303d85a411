"""From what a user calls a model to a bundle that can be run, exporting on first use.

The one place below the commands that composes the exporter, lazily; knows nothing of how it works.
Fetches nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from edge_runtime.bundle import MANIFEST_NAME
from edge_runtime.errors import (
    ExportError,
    IntegrityError,
    ModelNotFoundError,
    StorageError,
    UsageError,
)
from edge_runtime.file_hash import RememberedHashes, checkpoint_files, sha256_of_directory
from edge_runtime.store.catalog import load_catalog
from edge_runtime.store.contents import export_lock, sweep_exports
from edge_runtime.store.home import Home, make_folder
from edge_runtime.store.lookup import (
    BundleDirectory,
    ModelReference,
    SourceFile,
    StoredName,
    require_recipe,
    resolve,
)
from edge_runtime.store.names import DEFAULT_RECIPE, RECIPES, Recipe, directory_key, store_key
from edge_runtime.store.progress import Notice, Progress, Report, format_bytes

if TYPE_CHECKING:
    from edge_export.parity import ParityReport
    from edge_export.pipeline import ExportProgress, ExportReport
    from edge_export.portable_graphs import PortableRequest

__all__ = [
    "BundleDirectory",
    "ModelReference",
    "SourceFile",
    "StoredName",
    "ensure_bundle",
    "export_file",
    "export_into_store",
    "exporter_required",
    "resolve",
    "verify_export",
]


def ensure_bundle(
    model: str, *, quant: Recipe | None, report: Report, home: Home | None = None
) -> Path:
    """The bundle directory of MODEL, exported into the store if this is its first use.

    Args:
        model: see :mod:`edge_runtime.store.lookup`.
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
            require_recipe(reference.path, quant)
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
        else "give the .gguf file or the model directory itself",
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
    portable: tuple[PortableRequest, ...] = (),
) -> Path:
    """Export a .gguf file or a model directory to its place in the store, unless it is there.

    If another process is exporting the same, waits for it and uses what it made.

    Args:
        source: the file or directory.
        recipe: the quantization recipe.
        report: told what happens and how far it is.
        home: the store.
        name: the bundle's name; the source's own where it is None.
        sha256: what the source's hash must be, where that is known.
        overwrite: export again even if it is there.
        portable: graphs beside the fused one.

    Raises:
        IntegrityError: the source is not what ``sha256`` says.
        ExportError: see `export_file`.
    """
    remembered = RememberedHashes(home.hashes)
    source = source.resolve() if source.is_dir() else source
    try:
        if source.is_dir():
            found = sha256_of_directory(source, hash_file=remembered)
        else:
            found = remembered(source)
    except OSError as exc:
        raise ExportError(f"{source}: cannot be read: {exc.strerror or exc}") from exc
    if sha256 is not None and found != sha256:
        raise IntegrityError(
            f"{source}: its sha256 is {found}, and should be {sha256}",
            hint=f"it was changed or damaged: edge-runtime pull {name}",
        )
    key = (directory_key if source.is_dir() else store_key)(source, found)
    destination = home.bundles / key / recipe
    if (destination / MANIFEST_NAME).is_file() and not overwrite:
        return destination
    with home.exclusive(export_lock(key), doing=f"exporting {name or source.name}", report=report):
        sweep_exports(destination.parent)
        # Another process may have made it while this one waited.
        if not (destination / MANIFEST_NAME).is_file() or overwrite:
            make_folder(destination.parent)
            try:
                export_file(
                    source,
                    destination,
                    recipe,
                    report,
                    name=name,
                    overwrite=overwrite,
                    portable=portable,
                )
            except BaseException:
                with suppress(OSError):  # another recipe is in it
                    destination.parent.rmdir()
                raise
    return destination


def export_file(
    source: Path,
    destination: Path,
    recipe: Recipe,
    report: Report,
    *,
    name: str | None = None,
    context_length: int | None = None,
    overwrite: bool = False,
    portable: tuple[PortableRequest, ...] = (),
) -> ExportReport:
    """Run the exporter.

    Raises:
        ExportError: the source cannot become a bundle, the exporter's packages are missing, or the
            disk refuses.
    """
    with exporter_required():
        from edge_export.pipeline import ExportOptions, export_model

        said = False

        def progress(step: ExportProgress) -> None:
            nonlocal said
            if not said:  # not before: a source that is refused at once leaves one line, the error
                size = format_bytes(_size_bytes(source))
                report(Notice(f"exporting {name or source.name} ({size}, {recipe})"))
                said = True
            report(Progress(step.stage, step.done_bytes, step.total_bytes))

        options = ExportOptions(
            quant=recipe,
            name=name,
            context_length=context_length,
            overwrite=overwrite,
            portable=portable,
        )
        try:
            done = export_model(source, destination, options, progress)
        except OSError as exc:  # a name too long, a file where a folder should be, a failing disk
            raise StorageError(
                f"{exc.filename or destination}: {exc.strerror or exc}",
                hint="choose another place with -o or EDGE_RUNTIME_HOME",
            ) from exc
    report(Notice(f"exported in {done.seconds:.1f} s"))
    return done


def verify_export(bundle: Path, source: Path, report: Report) -> ParityReport:
    """How far a bundle's predictions are from its source's.

    Raises:
        ExportError: the source cannot be read, the bundle does not run, or the exporter's packages
            are missing.
        ProviderError: there is no usable onnxruntime.
    """
    with exporter_required():
        from edge_export.parity import verify

        return verify(bundle, source, lambda done, of: report(Progress("verifying", done, of)))


def _size_bytes(source: Path) -> int:
    files = checkpoint_files(source) if source.is_dir() else [source]
    return sum(file.stat().st_size for file in files)


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


def _one_recipe(model: str, named: Recipe | None, quant: Recipe | None) -> Recipe | None:
    if named is not None and quant is not None and named != quant:
        raise UsageError(
            f"{model!r} asks for {named}, and --quant for {quant}",
            hint=f"give one of them ({', '.join(RECIPES)})",
        )
    return named or quant
