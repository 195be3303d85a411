"""Write tiny random llama-architecture GGUF files, of any weight kind, for tests.

Kinds that the gguf package can quantize get normally distributed weights; the others get random
codes under sane scales. Knows nothing of the reader under test: files are made by the gguf
package's own writer, and the returned values by its own decoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize

# Byte offsets of the float16 scales inside a block, for kinds without a quantizer.
_SCALE_OFFSETS: dict[str, tuple[int, ...]] = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ1_S": (0,),
    "IQ2_XXS": (0,),
    "IQ2_XS": (0,),
    "IQ2_S": (0,),
    "IQ3_XXS": (0,),
    "IQ3_S": (0,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}
_MERGES = ("h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "Ġ t")
_CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_NORMAL, _CONTROL, _UNUSED = 1, 3, 5


def write_tiny_gguf(
    path: Path,
    *,
    kind: str = "Q4_1",
    embedding_kind: str | None = None,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    ffn: int = 128,
    vocab: int | None = None,
    tied: bool = True,
    biases: bool = False,
    seed: int = 0,
    architecture: str = "llama",
    extra_metadata: Mapping[str, Any] | None = None,
    extra_tensors: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Write a model file and return the float32 weights it holds, by its own tensor names.

    Args:
        path: where to write.
        kind: ggml kind of the linear layers; K and IQ kinds need sizes that are multiples of 256.
        embedding_kind: kind of the embedding and of an untied head; ``kind`` if None.
        vocab: tokens; None gives the 256 bytes, ten merges and three control tokens; more are
            filled up with unused tokens.
        tied: whether the file has no output.weight.
        biases: whether the attention projections have biases.
        extra_metadata: keys to add or replace; None as value leaves a key out. Integers become
            uint32, floats float32.
        extra_tensors: float32 tensors to add, such as ``rope_freqs.weight``.

    Returns:
        float32 arrays in row-major (out_features, in_features) order, in the file's own row order.
    """
    rng = np.random.default_rng(seed)
    metadata = _metadata(architecture, layers, hidden, heads, kv_heads, ffn, vocab)
    metadata.update(extra_metadata or {})
    head_size = hidden // heads
    table_kind = embedding_kind or kind
    vocab = len(metadata["tokenizer.ggml.tokens"]) if vocab is None else vocab

    writer = GGUFWriter(path, architecture)
    for key, value in metadata.items():
        if value is not None:
            _add_value(writer, key, value)
    held: dict[str, np.ndarray] = {}

    def matrix(name: str, rows: int, columns: int, stored_kind: str) -> None:
        stored, values = random_matrix(rng, stored_kind, rows, columns)
        writer.add_tensor(name, stored, raw_dtype=GGMLQuantizationType[stored_kind])
        held[name] = values

    def vector(name: str, values: np.ndarray) -> None:
        held[name] = values.astype(np.float32)
        writer.add_tensor(name, held[name])

    matrix("token_embd.weight", vocab, hidden, table_kind)
    for layer in range(layers):
        block = f"blk.{layer}."
        for part, rows in (("q", hidden), ("k", kv_heads * head_size), ("v", kv_heads * head_size)):
            matrix(f"{block}attn_{part}.weight", rows, hidden, kind)
            if biases:
                vector(f"{block}attn_{part}.bias", 0.1 * rng.standard_normal(rows))
        matrix(f"{block}attn_output.weight", hidden, hidden, kind)
        matrix(f"{block}ffn_gate.weight", ffn, hidden, kind)
        matrix(f"{block}ffn_up.weight", ffn, hidden, kind)
        matrix(f"{block}ffn_down.weight", hidden, ffn, kind)
        vector(f"{block}attn_norm.weight", 1 + 0.1 * rng.standard_normal(hidden))
        vector(f"{block}ffn_norm.weight", 1 + 0.1 * rng.standard_normal(hidden))
    vector("output_norm.weight", 1 + 0.1 * rng.standard_normal(hidden))
    if not tied:
        matrix("output.weight", vocab, hidden, table_kind)
    for name, values in (extra_tensors or {}).items():
        vector(name, values)

    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


def random_matrix(
    rng: np.random.Generator, kind: str, rows: int, columns: int
) -> tuple[np.ndarray, np.ndarray]:
    """A random matrix: what a file stores, and the float32 [rows, columns] that it means."""
    number = GGMLQuantizationType[kind]
    try:
        weights = rng.standard_normal((rows, columns)).astype(np.float32) / np.sqrt(columns)
        stored = quantize(weights.astype(np.float32), number)
    except NotImplementedError:
        stored = _random_blocks(rng, kind, rows, columns)
    if kind in ("F32", "F16"):
        return stored, stored.astype(np.float32)
    return stored, dequantize(stored, number)


def _random_blocks(rng: np.random.Generator, kind: str, rows: int, columns: int) -> np.ndarray:
    block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    if columns % block:
        raise ValueError(f"{kind} rows are multiples of {block}, not {columns}")
    stored = rng.integers(0, 256, (rows * columns // block, block_bytes), np.uint8)
    # First scales near 1e-3, then what brings the weights to the spread of the other kinds.
    spread = 1e-3
    for _ in range(2):
        scales = (spread * rng.uniform(0.5, 1.5, (len(stored), 2))).astype("<f2")
        for column, offset in enumerate(_SCALE_OFFSETS.get(kind, ())):
            as_bytes = np.ascontiguousarray(scales[:, column]).view(np.uint8)
            stored[:, offset : offset + 2] = as_bytes.reshape(-1, 2)
        if kind in _SCALE_OFFSETS:
            values = dequantize(stored, GGMLQuantizationType[kind])
            spread *= 1 / (float(values.std()) * np.sqrt(columns))
    if kind == "IQ1_M":
        # Its float16 scale is spread over the top four bits of four 16-bit words at byte 48.
        stored[:, [49, 51, 53, 55]] &= 0x0F
        stored[:, 55] |= 0x10
    return stored.reshape(rows, -1)


def _metadata(
    architecture: str,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    ffn: int,
    vocab: int | None,
) -> dict[str, Any]:
    tokens, types = _tokens(vocab)
    end, start_of_turn, end_of_turn = (tokens.index(token) for token in _CONTROL_TOKENS)
    return {
        "general.name": "Tiny",
        "general.license": "apache-2.0",
        f"{architecture}.block_count": layers,
        f"{architecture}.context_length": 256,
        f"{architecture}.embedding_length": hidden,
        f"{architecture}.feed_forward_length": ffn,
        f"{architecture}.attention.head_count": heads,
        f"{architecture}.attention.head_count_kv": kv_heads,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.rope.freq_base": 10000.0,
        f"{architecture}.rope.dimension_count": hidden // heads,
        f"{architecture}.vocab_size": len(tokens),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": list(_MERGES),
        "tokenizer.ggml.bos_token_id": start_of_turn,
        "tokenizer.ggml.eos_token_id": end_of_turn,
        "tokenizer.ggml.unknown_token_id": end,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": _CHAT_TEMPLATE,
    }


def _tokens(vocab: int | None) -> tuple[list[str], list[int]]:
    tokens = [*_byte_characters(), *(merge.replace(" ", "") for merge in _MERGES)]
    types = [_NORMAL] * len(tokens) + [_CONTROL] * len(_CONTROL_TOKENS)
    tokens += _CONTROL_TOKENS
    if vocab is not None:
        if vocab < len(tokens):
            raise ValueError(f"vocab is {vocab}; the tiny tokenizer alone has {len(tokens)} tokens")
        unused = range(vocab - len(tokens))
        tokens += [f"<|unused_{number}|>" for number in unused]
        types += [_UNUSED] * len(unused)
    return tokens, types


def _byte_characters() -> list[str]:
    """GPT-2's visible stand-in for each byte: itself where printable, else from U+0100 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    stand_ins = iter(range(256, 512))
    return [chr(byte if byte in printable else next(stand_ins)) for byte in range(256)]


def _add_value(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
