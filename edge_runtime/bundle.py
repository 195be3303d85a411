"""The contract between export and runtime: what a bundle directory holds and promises.

``manifest.json`` names every file with its size and sha256. A bundle may come from anyone, so
opening one checks every path, size and hash before anything else reads it. Holds no arrays, opens
no session, and never writes (edge_export.write does).
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal, get_args

from edge_runtime.errors import IntegrityError, ManifestError
from edge_runtime.file_hash import sha256_of_file
from edge_runtime.typed_data import DataError, decode

SCHEMA_VERSION = 1
MANIFEST_NAME = "manifest.json"
TOKENIZER_NAME = "tokenizer.json"
TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
CHAT_TEMPLATE_NAME = "chat_template.jinja"

# How a graph stores keys and values: as computed, or in 8 bits with a scale for each channel.
CacheType = Literal["float32", "int8"]
CACHE_TYPES: tuple[CacheType, ...] = get_args(CacheType)

_SHA256 = re.compile(r"[0-9a-f]{64}")
_MAX_MANIFEST_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class FileEntry:
    """One file of the bundle: its size in bytes and its sha256 in lower-case hex."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class ModelDimensions:
    """The sizes that the runtime needs to plan memory and build feeds."""

    layers: int
    heads: int
    kv_heads: int
    head_size: int
    hidden_size: int
    vocabulary_size: int
    context_length: int


@dataclass(frozen=True)
class GraphEntry:
    """One ONNX graph and what it is for.

    ``file`` is the graph; ``weights`` are the external data files that it maps. ``tokens`` and
    ``capacity`` are the new tokens of a run and the rows of the cache where the graph fixes them;
    graphs of one dialect, precision and capacity belong together, and a step takes the smallest
    that it fits in. ``usability`` is what onnxruntime's checker says phones would take of it.
    ``cache_type`` is one of :data:`CACHE_TYPES`, or one that a later version knows.
    """

    file: str
    weights: tuple[str, ...]
    dialect: str
    precision: str
    providers: tuple[str, ...]
    oldest_onnxruntime: str
    tokens: int | None = None
    capacity: int | None = None
    usability: tuple[str, ...] = ()
    cache_type: str = "float32"


@dataclass(frozen=True)
class TokenizerEntry:
    """Special tokens. ``end_token_ids`` is the union of every source that names one."""

    end_token_ids: tuple[int, ...]
    bos_token_id: int | None = None
    add_bos: bool = False


@dataclass(frozen=True)
class GenerationDefaults:
    """What the model's makers want when a request is silent; None where they say nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


@dataclass(frozen=True)
class QuantizedGroup:
    """One group of tensors: what it was, what it became, and the error that added.

    ``relative_error`` is the root mean square of the difference over that of the source's own
    (dequantized) weights; 0 where the values were carried over exactly.
    """

    name: str
    tensors: int
    source_kind: str
    stored_as: str
    source_bytes: int
    stored_bytes: int
    relative_error: float


@dataclass(frozen=True)
class Quantization:
    """The recipe asked for, what came of it, and how, where the recipe leaves a choice."""

    recipe: str
    groups: tuple[QuantizedGroup, ...] = ()
    method: str | None = None


@dataclass(frozen=True)
class SourceEntry:
    """Where the weights came from."""

    format: str
    file: str
    sha256: str


@dataclass(frozen=True)
class EmbeddingEntry:
    """How an embedding model makes one vector of a text.

    ``pooling`` is ``mean`` or ``cls``; ``normalize`` says whether vectors have length 1, as the
    graph gives them; ``max_tokens`` is the most tokens of a text.
    """

    pooling: str
    normalize: bool
    max_tokens: int


@dataclass(frozen=True)
class Manifest:
    """The content of ``manifest.json``.

    ``embedding`` is there for models that embed and do not write.     ``warm_prompt`` is the file of a saved prompt that is loaded at the start.
    """

    schema_version: int
    name: str
    architecture: str
    producer: str
    dimensions: ModelDimensions
    tokenizer: TokenizerEntry
    graphs: tuple[GraphEntry, ...]
    quantization: Quantization
    files: Mapping[str, FileEntry]
    source: SourceEntry
    license: str | None = None
    generation: GenerationDefaults = field(default_factory=GenerationDefaults)
    warm_prompt: str | None = None
    embedding: EmbeddingEntry | None = None


@dataclass(frozen=True)
class Bundle:
    """A verified bundle directory."""

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: Path, *, hash_file: Callable[[Path], str] = sha256_of_file) -> Bundle:
        """Read the manifest and check every file it names.

        Args:
            path: the bundle's directory.
            hash_file: gives a file's sha256; a caller may pass a remembering one
                (:class:`edge_runtime.file_hash.RememberedHashes`).

        Raises:
            ManifestError: no manifest, a malformed one, a newer schema, or a path that leaves the
                bundle.
            IntegrityError: a file is missing, or its size or hash differs.
        """
        manifest = read_manifest(path)
        for name, entry in manifest.files.items():
            _check_file(path, name, entry, hash_file)
        return cls(path=path, manifest=manifest)

    def file(self, name: str) -> Path:
        """The path of a file that the manifest names.

        Raises:
            ManifestError: the manifest does not name it.
        """
        if name not in self.manifest.files:
            raise ManifestError(f"{self.path}: the manifest names no file {name!r}")
        return self.path / name

    def has(self, name: str) -> bool:
        """Whether the manifest names this file."""
        return name in self.manifest.files


def read_manifest(path: Path) -> Manifest:
    """Read and check ``manifest.json`` of a bundle directory, without reading its other files.

    Raises:
        ManifestError: as :meth:`Bundle.open`.
    """
    file = path / MANIFEST_NAME
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ManifestError(f"{file}: not a regular file")  # a pipe would be waited for
        if status.st_size > _MAX_MANIFEST_BYTES:
            raise ManifestError(f"{file}: larger than any manifest")
        data = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise ManifestError(
            f"{path} is not a bundle: it has no {MANIFEST_NAME}",
            hint="make one with: edge-runtime export MODEL.gguf -o DIRECTORY",
        ) from exc
    except (OSError, ValueError, RecursionError) as exc:  # also numbers of too many digits
        raise ManifestError(f"{file}: cannot be read: {exc}") from exc
    version = data.get("schema_version") if isinstance(data, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise ManifestError(
            f"{file}: schema version {version} is newer than {SCHEMA_VERSION}",
            hint="upgrade edge-runtime",
        )
    if isinstance(version, int) and version < 1:
        raise ManifestError(f"{file}: there is no schema version {version}")
    try:
        manifest = decode(Manifest, data)
    except DataError as exc:
        raise ManifestError(f"{file}: {exc}") from exc
    _check_manifest(file, manifest)
    return manifest


def _check_manifest(file: Path, manifest: Manifest) -> None:
    for name, entry in manifest.files.items():
        if not is_safe_relative_path(name):
            raise ManifestError(f"{file}: the path {name!r:.200} leaves the bundle")
        if not _SHA256.fullmatch(entry.sha256):
            raise ManifestError(f"{file}: files.{name}.sha256 is not a sha256: {entry.sha256!r}")
    for graph in manifest.graphs:
        for name in (graph.file, *graph.weights):
            if name not in manifest.files:
                raise ManifestError(f"{file}: the graph needs {name!r}, which files does not list")
        for key, size in (("tokens", graph.tokens), ("capacity", graph.capacity)):
            if size is not None and size < 1:
                raise ManifestError(f"{file}: {key} of {graph.file!r} is {size}")
    if manifest.warm_prompt is not None and manifest.warm_prompt not in manifest.files:
        raise ManifestError(f"{file}: files does not list the warm prompt {manifest.warm_prompt!r}")
    if not manifest.graphs:
        raise ManifestError(f"{file}: it names no graph")
    for key, value in vars(manifest.dimensions).items():
        if value < 1:
            raise ManifestError(f"{file}: dimensions.{key} is {value}")
    tokenizer, vocabulary = manifest.tokenizer, manifest.dimensions.vocabulary_size
    begin = () if tokenizer.bos_token_id is None else (tokenizer.bos_token_id,)
    for token in (*tokenizer.end_token_ids, *begin):
        if not 0 <= token < vocabulary:
            raise ManifestError(f"{file}: token {token} is outside the {vocabulary} tokens")
    if tokenizer.add_bos and not begin:
        raise ManifestError(f"{file}: tokenizer.add_bos is true, and there is no bos_token_id")


def is_safe_relative_path(name: str) -> bool:
    """Whether a manifest's path is one, and stays inside its directory, on every system."""
    path = PurePosixPath(name)
    return (
        bool(name)
        and not path.is_absolute()
        and ".." not in path.parts
        # Half of a surrogate pair is no character: no file can be called so.
        and not any(c in "\\:\0" or "\ud800" <= c <= "\udfff" for c in name)
    )


def _check_file(
    directory: Path, name: str, entry: FileEntry, hash_file: Callable[[Path], str]
) -> None:
    file = directory / name
    try:
        if not file.resolve().is_relative_to(directory.resolve()):
            raise ManifestError(f"{directory}: {name!r} is a link that leaves the bundle")
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            raise IntegrityError(f"{file}: not a regular file", hint=_REMAKE)
        size = status.st_size
        if size != entry.size_bytes:
            raise IntegrityError(
                f"{file}: {size} bytes, and the manifest says {entry.size_bytes}", hint=_REMAKE
            )
        if hash_file(file) != entry.sha256:
            raise IntegrityError(f"{file}: its sha256 is not the manifest's", hint=_REMAKE)
    except (OSError, RuntimeError) as exc:  # RuntimeError: links in a circle, before Python 3.13
        reason = exc.strerror if isinstance(exc, OSError) else exc
        raise IntegrityError(f"{file}: cannot be read: {reason}", hint=_REMAKE) from exc


_REMAKE = "the file was changed or damaged: export or copy the bundle again"
