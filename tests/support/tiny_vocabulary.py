"""Hand-made vocabularies as GGUF metadata, small enough to tokenize on paper.

Knows nothing of the tokenizer under test.
"""

from __future__ import annotations

from typing import Any

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
CHAT_TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"


def byte_characters() -> list[str]:
    """The character that stands for each byte, 0 to 255, in byte-level vocabularies."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in own]
    return [chr(b) if b in own else chr(256 + others.index(b)) for b in range(256)]


def byte_level_metadata(pre: str = "smollm", **overrides: Any) -> dict[str, Any]:
    """Ids 0 to 255 are the bytes, then pieces that merges make, then added tokens.

    ``overrides`` replace keys under ``tokenizer.ggml.``; None removes one.
    """
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "1 2", "12 3", "Ġ 1"]
    pieces = [merge.replace(" ", "") for merge in merges]
    added = {"<|endoftext|>": CONTROL, "<|im_start|>": CONTROL, "<|im_end|>": CONTROL}
    added |= {"    ": USER_DEFINED, "  ": USER_DEFINED, "naïve": USER_DEFINED}
    tokens = [*byte_characters(), *pieces, *added]
    ids = {token: i for i, token in enumerate(tokens)}
    return _metadata(
        {
            "model": "gpt2",
            "pre": pre,
            "tokens": tokens,
            "token_type": [NORMAL] * (256 + len(pieces)) + list(added.values()),
            "merges": merges,
            "bos_token_id": ids["<|im_start|>"],
            "eos_token_id": ids["<|im_end|>"],
            "unknown_token_id": ids["<|endoftext|>"],
            "padding_token_id": ids["<|im_end|>"],
        },
        overrides,
    )


def sentencepiece_metadata(**overrides: Any) -> dict[str, Any]:
    """``<unk> <s> </s>``, the 256 bytes, pieces by score, single characters, added tokens."""
    pieces = ["▁t", "he", "▁the", "in", "▁▁", "▁▁▁▁", "ab", "bc", "abc", "</", "</s"]
    characters = [*"▁theinabc</s>", "日"]
    added = {"<|user|>": CONTROL, "   ": USER_DEFINED, "\n\n": USER_DEFINED}
    tokens = ["<unk>", "<s>", "</s>"]
    tokens += [f"<0x{byte:02X}>" for byte in range(256)]
    tokens += [*pieces, *characters, *added]
    normal = len(pieces) + len(characters)
    return _metadata(
        {
            "model": "llama",
            "pre": "default",
            "tokens": tokens,
            "token_type": [
                *[UNKNOWN, CONTROL, CONTROL],
                *[BYTE] * 256,
                *[NORMAL] * normal,
                *added.values(),
            ],
            "scores": [0.0] * 259 + [-float(i) for i in range(normal)] + [0.0] * len(added),
            "bos_token_id": 1,
            "eos_token_id": 2,
            "unknown_token_id": 0,
        },
        overrides,
    )


def _metadata(values: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in {**values, **overrides}.items() if value is not None}
    return {f"tokenizer.ggml.{key}": value for key, value in kept.items()}
