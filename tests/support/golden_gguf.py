"""The tiny checkpoints of tests/golden as llama.cpp's converter would write them.

Tensor names come from the gguf package's own map, so that a wrong name in the exporter cannot hide
here. What the converter does to values (rows in rotary pairs, norms with their one added, factors as
tensors) is written out.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from edge_export.sources.hugging_face import open_hugging_face
from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, GGUFWriter, get_tensor_name_map
from numpy.typing import NDArray
from support.golden import write_checkpoint

# Mistral is stored as llama, without its window; Qwen2's windows and dynamic scaling are not stored.
GGUF_CASES = {
    "llama": MODEL_ARCH.LLAMA,
    "llama-linear": MODEL_ARCH.LLAMA,
    "llama3": MODEL_ARCH.LLAMA,
    "llama-yarn": MODEL_ARCH.LLAMA,
    "qwen2": MODEL_ARCH.QWEN2,
    "qwen3": MODEL_ARCH.QWEN3,
    "smollm3": MODEL_ARCH.SMOLLM3,
    "gemma2": MODEL_ARCH.GEMMA2,
    "gemma3": MODEL_ARCH.GEMMA3,
    "phi3": MODEL_ARCH.PHI3,
    "phi3-long": MODEL_ARCH.PHI3,
    "granite": MODEL_ARCH.GRANITE,
    "olmo2": MODEL_ARCH.OLMO2,
    "starcoder2": MODEL_ARCH.STARCODER2,
    "stablelm": MODEL_ARCH.STABLELM,
}
_IN_PAIRS = {MODEL_ARCH.LLAMA, MODEL_ARCH.GRANITE, MODEL_ARCH.SMOLLM3}
_LAYER_NORM = {MODEL_ARCH.STARCODER2, MODEL_ARCH.STABLELM}
_GEMMA = {MODEL_ARCH.GEMMA2, MODEL_ARCH.GEMMA3}


def write_gguf(case: str, folder: Path) -> Path:
    """A case's weights in float32, as a GGUF file."""
    directory = write_checkpoint(case, folder)
    config = json.loads((directory / "config.json").read_text())
    arch = GGUF_CASES[case]
    path = folder / f"{case}.gguf"
    writer = GGUFWriter(path, MODEL_ARCH_NAMES[arch])
    for key, value in _metadata(config, arch).items():
        add = {
            bool: writer.add_bool,
            int: writer.add_uint32,
            float: writer.add_float32,
            str: writer.add_string,
        }.get(type(value), writer.add_array)
        add(key, value)
    names = get_tensor_name_map(arch, config["num_hidden_layers"])
    with open_hugging_face(directory) as checkpoint:
        for name, tensor in checkpoint.tensors.items():
            stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert stored is not None, name
            writer.add_tensor(stored, _as_converted(name, tensor.array(), config, arch))
    for name, factors in _rotary_tensors(config).items():
        writer.add_tensor(name, factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _as_converted(
    name: str, values: NDArray[np.float32], config: dict[str, Any], arch: MODEL_ARCH
) -> NDArray[np.float32]:
    if arch in _GEMMA and "norm" in name:
        return values + np.float32(1)
    if arch in _IN_PAIRS and ("q_proj" in name or "k_proj" in name):
        key = "num_attention_heads" if "q_proj" in name else "num_key_value_heads"
        halves = values.reshape(config[key], 2, -1, *values.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
    return values


def _metadata(config: dict[str, Any], arch: MODEL_ARCH) -> dict[str, Any]:
    rope = config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head_size = config.get("head_dim") or hidden // heads
    epsilon = next(
        config[k] for k in ("rms_norm_eps", "norm_epsilon", "layer_norm_eps") if k in config
    )
    layer_norm = "attention.layer_norm_epsilon"
    values: dict[str, Any] = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": hidden,
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head_size,
        "attention.value_length": head_size,
        layer_norm if arch in _LAYER_NORM else "attention.layer_norm_rms_epsilon": epsilon,
        "rope.freq_base": rope["rope_theta"],
        "rope.dimension_count": int(head_size * rope.get("partial_rotary_factor", 1)),
    }
    if config.get("sliding_window"):
        values["attention.sliding_window"] = config["sliding_window"]
    kind = rope["rope_type"]
    if kind in ("linear", "yarn"):
        values |= {"rope.scaling.type": kind, "rope.scaling.factor": rope["factor"]}
    if kind in ("yarn", "longrope"):
        original = rope["original_max_position_embeddings"]
        values["rope.scaling.original_context_length"] = original
    if kind == "longrope":
        grown = math.log(config["max_position_embeddings"] / original) / math.log(original)
        values["rope.scaling.attn_factor"] = math.sqrt(1 + grown)
    for key, stored in {
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "attention_multiplier": "attention.scale",
        "logits_scaling": "logit_scale",
    }.items():
        if config.get(key) is not None:
            values[stored] = float(config[key])
    prefixed = {f"{MODEL_ARCH_NAMES[arch]}.{key}": value for key, value in values.items()}
    return prefixed | _tokenizer(config["vocab_size"])


def _rotary_tensors(config: dict[str, Any]) -> dict[str, NDArray[np.float32]]:
    rope = config["rope_parameters"]
    if rope.get("rope_type") == "longrope":
        return {
            f"rope_factors_{which}.weight": np.array(rope[f"{which}_factor"], np.float32)
            for which in ("short", "long")
        }
    if rope.get("rope_type") != "llama3":
        return {}
    size = config["hidden_size"] // config["num_attention_heads"]
    frequencies = rope["rope_theta"] ** (-np.arange(0, size, 2) / size)
    original, low, high = (
        rope[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    )
    factors = []
    for wavelength in 2 * math.pi / frequencies:
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(rope["factor"])
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return {"rope_freqs.weight": np.array(factors, np.float32)}


def _tokenizer(vocabulary_size: int) -> dict[str, Any]:
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    tokens = [chr(b if b in printable else next(others)) for b in range(256)]
    tokens += ["<|begin|>", "<|pad|>", "<|im_end|>", "he"]
    unused = [f"<|unused_{i}|>" for i in range(vocabulary_size - len(tokens))]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens + unused,
        "tokenizer.ggml.token_type": [1] * 256 + [3] * 3 + [1] + [5] * len(unused),
        "tokenizer.ggml.merges": ["h e"],
        "tokenizer.ggml.bos_token_id": 256,
        "tokenizer.ggml.eos_token_id": 258,
        "tokenizer.ggml.add_bos_token": False,
    }
