"""Open a Hugging Face model directory: config.json and the weights in one or more safetensors files.

Reads data only: a directory that needs code of its own, or holds its weights in pickles, is
refused, and nothing in it is ever executed. Knows no architecture; the tokenizer's files are for
edge_export.sources.hugging_face_tokenizer to read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from edge_export.sources.checkpoint import Checkpoint, SourceTensor
from edge_export.sources.safetensors import open_safetensors
from edge_runtime.bundle import is_safe_relative_path
from edge_runtime.errors import ModelNotFoundError, SourceFormatError, UnsupportedModelError

CONFIG_NAME = "config.json"
_INDEX_NAME = "model.safetensors.index.json"
_SINGLE_NAME = "model.safetensors"
_MAX_JSON_BYTES = 256 << 20  # a tokenizer.json of a large vocabulary has some 30 MB
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def open_hugging_face(path: Path) -> Checkpoint:
    """Open a model directory; reads config.json and the headers of the weights.

    Args:
        path: the directory.

    Returns:
        A checkpoint of format ``"safetensors"`` whose metadata is config.json.

    Raises:
        ModelNotFoundError: no such directory.
        SourceFormatError: no config, a missing shard, an index that leaves the directory, or files
            that contradict each other.
        UnsupportedModelError: weights in pickles, code of the model's own, or weights that were
            quantized in a way that cannot be carried over.
    """
    if not path.is_dir():
        raise ModelNotFoundError(f"{path} is not a directory")
    config = read_json(path / CONFIG_NAME)
    _refuse_quantized(path, config)
    with ExitStack() as opened:
        tensors: dict[str, SourceTensor] = {}
        for file in weight_files(path):
            shard = open_safetensors(file)
            opened.callback(shard.close)
            if twice := next((name for name in shard.tensors if name in tensors), None):
                raise SourceFormatError(f"{path}: the tensor {twice!r:.100} is in two files")
            tensors.update(shard.tensors)
        if not tensors:
            raise SourceFormatError(f"{path}: its weight files hold no tensor")
        close = opened.pop_all().close
    return Checkpoint(
        format="safetensors", path=path, metadata=config, tensors=tensors, on_close=close
    )


def weight_files(path: Path) -> list[Path]:
    """The safetensors files of a directory.

    Raises:
        SourceFormatError: there are none, one that the index names is missing, or the index names
            a file outside the directory.
        UnsupportedModelError: the weights are pickles.
    """
    index = path / _INDEX_NAME
    if index.is_file():
        names = _shards(index)
        for name in names:
            if not (path / name).is_file():
                raise SourceFormatError(
                    f"{path}: the shard {name} of {len(names)} is missing",
                    hint="download the model again; all shards belong in one directory",
                )
        return [path / name for name in names]
    if (path / _SINGLE_NAME).is_file():
        return [path / _SINGLE_NAME]
    found = sorted(path.glob("*.safetensors"))
    if len(found) == 1:
        return found
    if found:
        raise SourceFormatError(
            f"{path} has {len(found)} .safetensors files and no {_INDEX_NAME} that says how they "
            "belong together"
        )
    pickles = sorted({p.name for pattern in _PICKLES for p in path.glob(pattern)})
    if pickles:
        raise UnsupportedModelError(
            f"{path}: {pickles[0]} is a pickle, which can run code when it is read; it is not "
            "opened",
            hint="use the model in safetensors form, or convert it where you trust it: "
            "transformers' save_pretrained writes safetensors",
        )
    raise SourceFormatError(f"{path} holds no weights: no .safetensors file")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object.

    Raises:
        SourceFormatError: it is missing, too large, not JSON, or not an object.
    """
    try:
        if not path.is_file():
            raise SourceFormatError(f"{path.parent} has no {path.name}")
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise SourceFormatError(f"{path} is larger than any such file")
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as exc:
        raise SourceFormatError(f"{path} cannot be read: {exc!s:.200}") from exc
    if not isinstance(data, dict):
        raise SourceFormatError(f"{path} holds no object")
    return data


def _shards(index: Path) -> list[str]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise SourceFormatError(f"{index}: there is no weight_map")
    names: Iterable[Any] = dict.fromkeys(map(str, weight_map.values()))
    for name in names:
        if not is_safe_relative_path(name) or not name.endswith(".safetensors"):
            raise SourceFormatError(f"{index}: {name!r:.200} is no safetensors file of the model")
    return sorted(names)


def _refuse_quantized(path: Path, config: dict[str, Any]) -> None:
    method = config.get("quantization_config") or config.get("compression_config")
    if isinstance(method, dict):
        name = method.get("quant_method", "an unnamed method")
        raise UnsupportedModelError(
            f"{path}: the weights are quantized already, with {name!r:.40}",
            hint="export the model's original weights, or a GGUF of it",
        )
