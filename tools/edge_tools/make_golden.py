"""Make the tiny checkpoints that architectures are held to, with what transformers computes of them.

    python -m edge_tools.make_golden tests/golden [CASE ...]

Needs torch and transformers, which nothing else here does: give it an environment of its own. For
each case it writes config.json, the weights in bfloat16 where no other case has the same, and
reference.npz: a prompt, the logits at each of its tokens, and the tokens that follow greedily. The
reference is computed in float32 from the rounded weights, reading the whole text again for each
token, so that no cache has a part in it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

VOCABULARY = 272
GREEDY_TOKENS = 64
# Of the largest logit. Where the best two are nearer, another order of additions may swap them.
_SMALLEST_LEAD = 2e-4
_SEEDS = range(200)

_COMMON: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 256,
    "eos_token_id": 258,
    "pad_token_id": 257,
}
_HALF_FACTORS = [1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0]


@dataclass(frozen=True)
class Case:
    """One reference.

    Attributes:
        model_type: transformers' name of the family.
        config: keys that differ from the common ones.
        weights_of: the case whose weights it has; None for weights of its own.
        prompt_tokens: past the window, and past the context that rotary scaling starts from.
        context_length: that the export is asked for; None for the model's own choice.
        greedy_tokens: 0 where the positions depend on the length of the text.
        shard: the largest shard, as transformers writes it; None for one file.
    """

    model_type: str
    config: Mapping[str, Any] = field(default_factory=dict)
    weights_of: str | None = None
    prompt_tokens: int = 40
    context_length: int | None = None
    greedy_tokens: int = GREEDY_TOKENS
    shard: str | None = None


def _rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **parameters}}


_LONGROPE = {
    "num_key_value_heads": 2,
    "original_max_position_embeddings": 112,
    **_rope(
        "longrope",
        short_factor=_HALF_FACTORS,
        long_factor=[2 * f for f in _HALF_FACTORS],
        original_max_position_embeddings=112,
    ),
}

CASES: Mapping[str, Case] = {
    "llama": Case("llama"),
    "llama-linear": Case("llama", _rope("linear", factor=4.0), weights_of="llama"),
    "llama-dynamic": Case(
        "llama",
        {**_rope("dynamic", factor=4.0), "max_position_embeddings": 24},
        weights_of="llama",
        context_length=40,
        greedy_tokens=0,
    ),
    "llama3": Case(
        "llama",
        _rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        ),
        weights_of="llama",
    ),
    "llama-yarn": Case(
        "llama",
        _rope("yarn", factor=8.0, original_max_position_embeddings=32),
        weights_of="llama",
    ),
    "mistral": Case("mistral", {"sliding_window": 16, "head_dim": 32}),
    "qwen2": Case("qwen2", {"tie_word_embeddings": True}, shard="60KB"),
    "qwen2-window": Case(
        "qwen2",
        {
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": 16,
            "max_window_layers": 1,
        },
        weights_of="qwen2",
    ),
    "qwen3": Case("qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "smollm3": Case(
        "smollm3", {"num_hidden_layers": 4, "tie_word_embeddings": True, "pad_token_id": 257}
    ),
    "gemma2": Case(
        "gemma2",
        {
            "head_dim": 32,
            "sliding_window": 16,
            "query_pre_attn_scalar": 32,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 8.0,
        },
    ),
    "gemma3": Case(
        "gemma3_text",
        {
            "num_hidden_layers": 6,
            "head_dim": 16,
            "sliding_window": 16,
            "query_pre_attn_scalar": 16,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            },
        },
    ),
    "phi3": Case("phi3", {**_LONGROPE, "sliding_window": 24}),
    "phi3-long": Case(
        "phi3",
        {**_LONGROPE, "sliding_window": 24},
        weights_of="phi3",
        prompt_tokens=120,
        context_length=256,
    ),
    "granite": Case(
        "granite",
        {
            "embedding_multiplier": 6.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.1,
            "logits_scaling": 4.0,
            "tie_word_embeddings": True,
        },
    ),
    "olmo2": Case("olmo2", {"head_dim": 16}),
    "starcoder2": Case("starcoder2", {"sliding_window": 16, "use_bias": True}),
    "stablelm": Case(
        "stablelm",
        {"num_attention_heads": 2, "num_key_value_heads": 1, "partial_rotary_factor": 0.5},
    ),
}


def make(case: Case, folder: Path, name: str) -> float:
    """Write one case.

    Returns:
        How far ahead the nearest greedy token was, as a share of the largest logit.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.set_num_threads(1)
    config = AutoConfig.for_model(case.model_type, **{**_COMMON, **case.config})
    config._attn_implementation = "eager"
    config.dtype = torch.bfloat16
    rng = np.random.default_rng(7)
    prompt = rng.integers(0, 256, case.prompt_tokens)
    directory = folder / name
    directory.mkdir(parents=True, exist_ok=True)
    if case.weights_of is not None:
        weights = _weights(folder / case.weights_of)
        model = AutoModelForCausalLM.from_config(config).float().eval()
        missing = model.load_state_dict(weights, strict=False)
        assert not missing.unexpected_keys, missing
        lead, reference = _reference(model, prompt, case.greedy_tokens)
        config.architectures = [type(model).__name__]
        config.save_pretrained(directory)
    else:
        for seed in _SEEDS:
            model = AutoModelForCausalLM.from_config(config).float().eval()
            _randomize(model, seed)
            lead, reference = _reference(model, prompt, case.greedy_tokens)
            if lead >= _SMALLEST_LEAD:
                break
        model.to(torch.bfloat16).save_pretrained(
            directory, **({} if case.shard is None else {"max_shard_size": case.shard})
        )
        (directory / "generation_config.json").unlink(missing_ok=True)
        for file in directory.glob("*.safetensors"):
            file.chmod(0o644)
    reference["context_length"] = np.array(case.context_length or 0)
    arrays: dict[str, Any] = reference
    np.savez_compressed(directory / "reference.npz", **arrays)
    return lead


def _randomize(model: Any, seed: int) -> None:
    """Weights under which every part of the model matters, rounded to bfloat16."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    # Of a table that the head shares, large rows would only repeat the last token.
    embedding_spread = 0.05 if model.config.tie_word_embeddings else 1.0
    offset = 0.0 if "Gemma" in type(model).__name__ else 1.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                values = 0.2 * noise + (offset if name.endswith("weight") else 0.0)
            else:
                linear = 1.5 / parameter.shape[1] ** 0.5
                values = (embedding_spread if "embed_tokens" in name else linear) * noise
            parameter.copy_(values.to(torch.bfloat16).float())


def _weights(directory: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    weights: dict[str, Any] = {}
    for file in sorted(directory.glob("*.safetensors")):
        weights.update({k: v.float() for k, v in load_file(file).items()})
    return weights


def _reference(
    model: Any, prompt: NDArray[np.int64], greedy_tokens: int
) -> tuple[float, dict[str, NDArray[Any]]]:
    """The prompt, its logits and what follows; and the smallest lead of a greedy token."""
    import torch

    tokens = [int(t) for t in prompt]
    lead = np.inf

    def logits() -> NDArray[np.float32]:
        with torch.no_grad():
            found = model(torch.tensor([tokens]), use_cache=False).logits[0]
        return np.asarray(found.numpy(), np.float32)

    first = logits()
    last = first[-1]
    for step in range(greedy_tokens):
        order = np.sort(last)
        lead = min(lead, float((order[-1] - order[-2]) / np.abs(last).max()))
        tokens.append(int(last.argmax()))
        if step + 1 < greedy_tokens:
            last = logits()[-1]
    greedy = np.array(tokens[len(prompt) :], np.int32)
    return lead, {"prompt": prompt.astype(np.int32), "logits": first, "greedy": greedy}


def write_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer that all cases share: a token a byte, and three that steer."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    characters = [chr(b if b in printable else next(others)) for b in range(256)]
    names = ("<|begin|>", "<|pad|>", "<|im_end|>")
    added = [
        {
            "id": 256 + i,
            "content": name,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, name in enumerate(names)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    data: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": False},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {character: i for i, character in enumerate(characters)},
            "merges": [],
        },
    }
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    config = {"bos_token": names[0], "pad_token": names[1], "eos_token": names[2]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Make the cases named, or all."""
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    for name in arguments[1:] or CASES:
        lead = make(CASES[name], folder, name)
        print(f"{name}: the nearest greedy token was {lead:.1e} of the largest logit ahead")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
