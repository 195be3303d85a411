"""Which checkpoints are read, and what is refused before any work is done on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from edge_export.architectures.registry import read_spec
from edge_export.sources.gguf import open_gguf
from support.tiny_gguf import write_tiny_gguf

from edge_runtime.errors import SourceFormatError, UnsupportedModelError


def read(path: Path, **metadata: Any) -> object:
    write_tiny_gguf(path, extra_metadata={f"llama.{k}": v for k, v in metadata.items()})
    with open_gguf(path) as checkpoint:
        return read_spec(checkpoint)


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "odd.gguf", architecture="perceptron")
    with (
        open_gguf(tmp_path / "odd.gguf") as checkpoint,
        pytest.raises(UnsupportedModelError, match="'perceptron' is not supported"),
    ):
        read_spec(checkpoint)


@pytest.mark.parametrize("layers", [3, 2**31 - 1])
def test_layers_that_the_file_does_not_hold_are_refused(layers: int, tmp_path: Path) -> None:
    with pytest.raises(SourceFormatError, match=f"should be {layers} layers, and the tensor blk"):
        read(tmp_path / "m.gguf", block_count=layers)


def test_a_context_that_no_memory_holds_the_tables_of_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceFormatError, match="a context of 2147483647 tokens"):
        read(tmp_path / "m.gguf", context_length=2**31 - 1)
