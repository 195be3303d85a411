"""A model as a user names it, opened: its checkpoint, and what its format says beside the weights.

The one place that knows which formats there are. Knows no architecture.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from edge_export.sources.checkpoint import Checkpoint
from edge_export.sources.gguf import open_gguf
from edge_export.sources.gguf_tokenizer import build_tokenizer
from edge_export.sources.hugging_face import open_hugging_face
from edge_export.sources.hugging_face_tokenizer import read_generation_defaults, read_tokenizer
from edge_export.sources.tokenizer_files import TokenizerFiles
from edge_runtime.bundle import GenerationDefaults
from edge_runtime.errors import SourceFormatError
from edge_runtime.file_hash import sha256_of_directory, sha256_of_file

_LICENSE = re.compile(r"^license:\s*([\w.+-]+)\s*$", re.MULTILINE)


class SourceModel(Protocol):
    """An open source; who opened it closes its checkpoint."""

    @property
    def checkpoint(self) -> Checkpoint:
        """The weights and what describes them."""

    @property
    def name(self) -> str:
        """What the source calls the model, or its file."""

    @property
    def license(self) -> str | None:
        """As the source states it."""

    def tokenizer(self, vocabulary_size: int) -> TokenizerFiles:
        """The tokenizer's files.

        Args:
            vocabulary_size: rows of the embedding.

        Raises:
            SourceFormatError: it has tokens that the embedding has no row for, or is damaged.
            UnsupportedModelError: a kind that is not known.
        """

    def generation(self) -> GenerationDefaults:
        """What the model's makers want when a request is silent."""

    def sha256(self) -> str:
        """Of everything that the bundle is made from."""


def open_source(path: Path) -> SourceModel:
    """Open a GGUF file or a Hugging Face directory.

    Raises:
        ExportError, ModelNotFoundError: as :func:`open_gguf` and :func:`open_hugging_face`.
    """
    if path.is_dir():
        return _HuggingFaceModel(open_hugging_face(path))
    return _GgufModel(open_gguf(path))


@dataclass(frozen=True)
class _GgufModel:
    checkpoint: Checkpoint

    @property
    def name(self) -> str:
        return self.checkpoint.path.stem

    @property
    def license(self) -> str | None:
        value = self.checkpoint.metadata.get("general.license")
        return value if isinstance(value, str) else None

    def tokenizer(self, vocabulary_size: int) -> TokenizerFiles:
        files = build_tokenizer(self.checkpoint.metadata)
        tokens = len(self.checkpoint.metadata["tokenizer.ggml.tokens"])
        if tokens > vocabulary_size:
            raise SourceFormatError(
                f"{self.checkpoint.path}: the tokenizer has {tokens} tokens, "
                f"and the embedding {vocabulary_size} rows"
            )
        return files

    def generation(self) -> GenerationDefaults:
        return GenerationDefaults()

    def sha256(self) -> str:
        return sha256_of_file(self.checkpoint.path)


@dataclass(frozen=True)
class _HuggingFaceModel:
    checkpoint: Checkpoint

    @property
    def name(self) -> str:
        return self.checkpoint.path.resolve().name

    @property
    def license(self) -> str | None:
        """The front matter of the model card, where there is one."""
        try:
            with (self.checkpoint.path / "README.md").open(encoding="utf-8") as stream:
                start = stream.read(4096)
        except (OSError, ValueError):
            return None
        found = _LICENSE.search(start) if start.startswith("---") else None
        return found[1] if found else None

    def tokenizer(self, vocabulary_size: int) -> TokenizerFiles:
        return read_tokenizer(self.checkpoint.path, self.checkpoint.metadata, vocabulary_size)

    def generation(self) -> GenerationDefaults:
        return read_generation_defaults(self.checkpoint.path)

    def sha256(self) -> str:
        return sha256_of_directory(self.checkpoint.path)
