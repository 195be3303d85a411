"""The real model from GGUF, and the same weights from safetensors: one bundle."""

from __future__ import annotations

import json
import shutil
import struct
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from edge_export.pipeline import GRAPH_NAME, WEIGHTS_NAME, ExportOptions, export_model
from edge_export.sources.gguf import open_gguf
from support.golden import ExportedGraph

pytestmark = pytest.mark.model

_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def write_directory(source: Path, tokenizer: Path, directory: Path) -> Path:
    """A GGUF file of the llama family as a Hugging Face directory in float32."""
    directory.mkdir()
    with open_gguf(source) as checkpoint:
        m = {k.removeprefix("llama."): v for k, v in checkpoint.metadata.items()}
        heads, kv_heads = m["attention.head_count"], m["attention.head_count_kv"]
        config = {
            "model_type": "llama",
            "hidden_size": m["embedding_length"],
            "intermediate_size": m["feed_forward_length"],
            "num_hidden_layers": m["block_count"],
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "max_position_embeddings": m["context_length"],
            "rms_norm_eps": m["attention.layer_norm_rms_epsilon"],
            "rope_theta": m["rope.freq_base"],
            "vocab_size": checkpoint.tensors["token_embd.weight"].shape[0],
            "tie_word_embeddings": True,
        }
        (directory / "config.json").write_text(json.dumps(config))
        header, at = {}, 0
        for name, tensor in checkpoint.tensors.items():
            end = at + 4 * int(np.prod(tensor.shape))
            header[_hugging_face_name(name)] = {
                "dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, end]
            }  # fmt: skip
            at = end
        text = json.dumps(header).encode()
        with (directory / "model.safetensors").open("wb") as stream:
            stream.write(struct.pack("<Q", len(text)) + text)
            for name, tensor in checkpoint.tensors.items():
                values = tensor.array()
                if ".attn_q." in name or ".attn_k." in name:
                    count = heads if ".attn_q." in name else kv_heads
                    pairs = values.reshape(count, -1, 2, values.shape[1])
                    values = pairs.swapaxes(1, 2).reshape(values.shape)
                stream.write(np.ascontiguousarray(values).tobytes())
                tensor.release()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, directory)
    return directory


def _hugging_face_name(name: str) -> str:
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, layer, part, suffix = name.split(".")
    return f"model.layers.{layer}.{_NAMES[part]}.{suffix}"


def test_gguf_and_safetensors_of_the_same_weights_are_the_same_bundle(
    real_source: Path, real_bundle: Path, tmp_path: Path
) -> None:
    directory = write_directory(real_source, real_bundle, tmp_path / "model")
    options = ExportOptions(quant="f32", context_length=256)
    of_gguf = export_model(real_source, tmp_path / "gguf", options)
    of_directory = export_model(directory, tmp_path / "safetensors", options)
    for name in (GRAPH_NAME, WEIGHTS_NAME):
        assert of_gguf.manifest.files[name] == of_directory.manifest.files[name]
    prompt = np.random.default_rng(0).integers(0, 49152, 24).tolist()
    logits = []
    for report in (of_gguf, of_directory):
        with closing(ExportedGraph(report.bundle_path)) as graph:
            logits += graph.run([prompt], held=[0])
    np.testing.assert_array_equal(*logits)
