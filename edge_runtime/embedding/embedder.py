"""Texts to vectors with an embedding bundle: tokenize, batch by length, run, put back in order.

Knows no generation: an embedding model has no cache and samples nothing. Safe to share between
threads, which take turns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_runtime.bundle import TOKENIZER_NAME, Bundle, EmbeddingEntry, Manifest
from edge_runtime.embedding.batches import group_by_length
from edge_runtime.errors import (
    EmptyPromptError,
    ManifestError,
    PromptTooLongError,
    RunError,
    TokenizerError,
)
from edge_runtime.file_hash import sha256_of_file
from edge_runtime.providers.memory_advice import trim_heap
from edge_runtime.providers.ort import first_line, require_version
from edge_runtime.providers.session import CPU_PROVIDER, SessionOptions, open_session
from edge_runtime.providers.threads import plan_threads

# Activations of so many tokens stay small, and products of so many rows run at full speed.
_MOST_TOKENS = 512
_MOST_WASTE = 0.1


@dataclass(frozen=True)
class Embeddings:
    """Vectors of some texts, and what computing them took.

    Attributes:
        vectors: float32 (texts, width), in the order of the texts.
        tokens: of all texts, special tokens included.
        padding_tokens: that were computed beside them to fill up batches.
    """

    vectors: NDArray[np.float32]
    tokens: int
    padding_tokens: int


class Embedder:
    """One embedding model; use it as a context manager.

    Args:
        manifest: the bundle's promises.
        session: the onnxruntime session of its graph.
        tokenizer: a ``tokenizers.Tokenizer``.
        entry: how the model embeds.
    """

    def __init__(
        self, manifest: Manifest, *, session: Any, tokenizer: Any, entry: EmbeddingEntry
    ) -> None:
        self.manifest = manifest
        self._session: Any = session
        self._tokenizer = tokenizer
        self._entry = entry
        self._turn = threading.Lock()

    @classmethod
    def load(
        cls,
        bundle: Path | str,
        *,
        threads: int | None = None,
        hash_file: Callable[[Path], str] = sha256_of_file,
    ) -> Embedder:
        """Open an embedding bundle.

        Args:
            bundle: the directory.
            threads: None chooses by affinity, quota and core speeds.
            hash_file: as :meth:`edge_runtime.bundle.Bundle.open`.

        Raises:
            BundleError: the bundle cannot be trusted or read, or its model does not embed.
            TokenizerError: its tokenizer does not load.
            ProviderError: no onnxruntime, one too old, or it does not open the graph.
        """
        from edge_runtime.engine.open_model import check_locations

        opened = Bundle.open(Path(bundle), hash_file=hash_file)
        manifest = opened.manifest
        if manifest.embedding is None:
            raise ManifestError(
                f"{manifest.name} writes text and does not embed",
                hint="use an embedding model, such as all-MiniLM-L6-v2 or bge-small",
            )
        graph = manifest.graphs[0]
        require_version(graph.oldest_onnxruntime, f"{manifest.name}'s graph")
        check_locations(opened, graph)
        options = SessionOptions(plan_threads(threads), CPU_PROVIDER)
        session = open_session(opened.file(graph.file), options).ort_session
        tokenizer = _load_tokenizer(opened.file(TOKENIZER_NAME))
        trim_heap()
        return cls(manifest, session=session, tokenizer=tokenizer, entry=manifest.embedding)

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        return self.manifest.dimensions.hidden_size

    @property
    def max_tokens(self) -> int:
        """Most tokens of a text, special tokens included."""
        return self._entry.max_tokens

    def embed(self, texts: Sequence[str], *, truncate: bool = False) -> Embeddings:
        """Embed some texts.

        Args:
            texts: any number of them.
            truncate: take the beginning of a text that is too long, instead of refusing it.

        Raises:
            EmptyPromptError: a text without any character in it.
            PromptTooLongError: a text of more tokens than the model takes.
            RunError: onnxruntime failed, or the embedder is closed.
        """
        ids = [self._encode(text, number, truncate) for number, text in enumerate(texts)]
        vectors = np.empty((len(ids), self.width), np.float32)
        lengths = [len(tokens) for tokens in ids]
        padded = 0
        for batch in group_by_length(lengths, most_tokens=_MOST_TOKENS, most_waste=_MOST_WASTE):
            longest = lengths[batch[0]]
            tokens = np.zeros((len(batch), longest), np.int64)
            mask = np.zeros((len(batch), longest), np.int64)
            for row, index in enumerate(batch):
                tokens[row, : lengths[index]] = ids[index]
                mask[row, : lengths[index]] = 1
            vectors[batch] = self._run(tokens, mask)
            padded += tokens.size
        return Embeddings(vectors, sum(lengths), padded - sum(lengths))

    def close(self) -> None:
        """Let the session go, after the run in progress. Closing twice is harmless."""
        with self._turn:
            self._session = None

    def __enter__(self) -> Embedder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _encode(self, text: str, number: int, truncate: bool) -> list[int]:
        if not text.strip():
            raise EmptyPromptError(f"text {number + 1} is empty", hint="leave empty texts out")
        encoding = self._tokenizer.encode(text)
        tokens = list(encoding.ids)
        if len(tokens) <= self.max_tokens:
            return tokens
        if not truncate:
            raise PromptTooLongError(len(tokens), self.max_tokens)
        # What closes a text must close what is left of it.
        closing = encoding.special_tokens_mask[::-1].index(0)
        kept = self.max_tokens - closing
        return tokens[:kept] + tokens[len(tokens) - closing :]

    def _run(self, tokens: NDArray[np.int64], mask: NDArray[np.int64]) -> NDArray[np.float32]:
        with self._turn:
            if self._session is None:
                raise RunError("the embedder is closed", hint="load the bundle again")
            try:
                (vectors,) = self._session.run(
                    ["embeddings"], {"input_ids": tokens, "attention_mask": mask}
                )
            except Exception as exc:  # onnxruntime raises many kinds that share no base
                raise RunError(f"onnxruntime failed in a step: {first_line(exc)}") from exc
        result: NDArray[np.float32] = vectors
        return result


def _load_tokenizer(file: Path) -> Any:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as exc:  # the library raises bare Exception
        raise TokenizerError(f"{file} cannot be read: {first_line(exc)}") from exc
    # Texts are cut and filled up here, where it can be said.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
