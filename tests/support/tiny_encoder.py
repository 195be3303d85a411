"""A tiny random embedding model in Hugging Face's form, and its vectors by plain numpy.

The reference follows the BERT paper's equations and shares nothing with the code under test.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import erf, sqrt
from pathlib import Path
from typing import Any

import numpy as np

F32 = np.ndarray[Any, np.dtype[np.float32]]
HEADS, HIDDEN, WIDE, LAYERS, POSITIONS = 4, 64, 96, 2, 40
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz")


@dataclass(frozen=True)
class TinyEncoder:
    """Where it lies, and its tensors by name."""

    path: Path
    tensors: dict[str, F32]
    first_position: int
    pooling: str
    normalize: bool

    def vector(self, ids: Sequence[int]) -> F32:
        """The vector of one text's tokens, float32 (hidden,)."""
        t = self.tensors
        x = t["embeddings.word_embeddings.weight"][list(ids)]
        x = x + t["embeddings.position_embeddings.weight"][self.first_position :][: len(ids)]
        x = x + t["embeddings.token_type_embeddings.weight"][0]
        x = self._norm(x, "embeddings.LayerNorm")
        for i in range(LAYERS):
            at = f"encoder.layer.{i}"
            q, k, v = (
                self._linear(x, f"{at}.attention.self.{n}").reshape(len(ids), HEADS, -1)
                for n in ("query", "key", "value")
            )
            scores = np.einsum("qhd,khd->hqk", q, k) / sqrt(HIDDEN / HEADS)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            attended = np.einsum("hqk,khd->qhd", weights, v).reshape(len(ids), HIDDEN)
            attended = self._linear(attended, f"{at}.attention.output.dense")
            x = self._norm(x + attended, f"{at}.attention.output.LayerNorm")
            wide = self._linear(x, f"{at}.intermediate.dense")
            wide = wide * (1 + np.vectorize(erf)(wide / sqrt(2))) / 2
            out = self._linear(wide, f"{at}.output.dense")
            x = self._norm(x + out, f"{at}.output.LayerNorm")
        pooled = x.mean(axis=0) if self.pooling == "mean" else x[0]
        return np.asarray(
            pooled / np.linalg.norm(pooled) if self.normalize else pooled, dtype=np.float32
        )

    def _linear(self, x: F32, name: str) -> F32:
        return x @ self.tensors[f"{name}.weight"].T + self.tensors[f"{name}.bias"]

    def _norm(self, x: F32, name: str) -> F32:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
        return scaled * self.tensors[f"{name}.weight"] + self.tensors[f"{name}.bias"]


def write_tiny_encoder(
    path: Path,
    *,
    model_type: str = "bert",
    pooling: str = "mean",
    normalize: bool = True,
    prefix: str = "",
    max_tokens: int | None = None,
    config: dict[str, Any] | None = None,
) -> TinyEncoder:
    """Write the model directory; ``config`` overrides what config.json says."""
    random = np.random.default_rng(3)
    shapes = {
        "embeddings.word_embeddings.weight": (len(WORDS), HIDDEN),
        "embeddings.position_embeddings.weight": (POSITIONS, HIDDEN),
        "embeddings.token_type_embeddings.weight": (2, HIDDEN),
    }
    norms = ["embeddings.LayerNorm"]
    for i in range(LAYERS):
        at = f"encoder.layer.{i}"
        products = {
            **{f"{at}.attention.self.{n}": (HIDDEN, HIDDEN) for n in ("query", "key", "value")},
            f"{at}.attention.output.dense": (HIDDEN, HIDDEN),
            f"{at}.intermediate.dense": (WIDE, HIDDEN),
            f"{at}.output.dense": (HIDDEN, WIDE),
        }
        for name, shape in products.items():
            shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
        norms += [f"{at}.attention.output.LayerNorm", f"{at}.output.LayerNorm"]
    tensors = {
        name: (random.normal(size=shape) * 0.2).astype(np.float32) for name, shape in shapes.items()
    }
    for name in norms:
        tensors[f"{name}.weight"] = random.uniform(0.5, 1.5, HIDDEN).astype(np.float32)
        tensors[f"{name}.bias"] = (random.normal(size=HIDDEN) * 0.1).astype(np.float32)
    path.mkdir(parents=True)
    _write_safetensors(path / "model.safetensors", {prefix + k: v for k, v in tensors.items()})
    settings = {
        "model_type": model_type,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "intermediate_size": WIDE,
        "vocab_size": len(WORDS),
        "max_position_embeddings": POSITIONS,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        **(config or {}),
    }
    _write_json(path / "config.json", settings)
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    modules = [
        {"idx": i, "path": f"{i}_{k}" if i else "", "type": f"sentence_transformers.models.{k}"}
        for i, k in enumerate(kinds)
    ]
    _write_json(path / "modules.json", modules)
    (path / "1_Pooling").mkdir()
    modes = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}
    chosen = {key: name == pooling for name, key in modes.items()}
    if pooling not in modes:
        chosen[f"pooling_mode_{pooling}_tokens"] = True
    _write_json(path / "1_Pooling" / "config.json", chosen)
    if max_tokens is not None:
        _write_json(path / "sentence_bert_config.json", {"max_seq_length": max_tokens})
    _write_tokenizer(path / "tokenizer.json")
    first = 0 if model_type == "bert" else 2
    return TinyEncoder(path, tensors, first, pooling, normalize)


def token_ids(text: str) -> list[int]:
    """The tokens of words that are single letters, as the tiny tokenizer has them."""
    return [2, *(WORDS.index(word) for word in text.split()), 3]


def _write_tokenizer(path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = {word: i for i, word in enumerate(WORDS)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    # As published ones often have it; texts must be neither cut nor filled up behind our back.
    made.enable_truncation(8)
    made.enable_padding(length=8)
    made.save(str(path))


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def _write_safetensors(path: Path, tensors: dict[str, F32]) -> None:
    header: dict[str, Any] = {}
    offset = 0
    for name, array in tensors.items():
        end = offset + array.nbytes
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    data = b"".join(array.tobytes() for array in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
