"""How byte-level BPE vocabularies cut a text into words before merging, by the names GGUF uses.

A GGUF file does not hold its pre-tokenizer: ``tokenizer.ggml.pre`` names one. Each name is a row of
data here. A pattern is applied to what the one before left whole, and both what matches and what
lies between is kept, so the words together are the text. The expressions are those of the models'
own tokenizers in Oniguruma syntax, where llama.cpp has had to adapt them to its own matcher.

Knows no file format. Names are missing on purpose where the rule is not a list of expressions
(kimi-k2, afmoe, superbpe), the vocabulary is not byte-level (gemma4, sarvam-moe, whitespace) or the
model does not generate (the jina family, roberta-bpe, modern-bert).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class PreTokenizer:
    """One row.

    Args:
        patterns: regular expressions, in the order in which they are applied.
        ignore_merges: a word that is a token is taken whole, whatever the merges say.
        adds_bos: prompts begin with the beginning-of-text token where the file does not say.
        normalizer: a Unicode normalization form applied first, or None.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    adds_bos: bool = False
    normalizer: str | None = None


_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACE = r"\s+(?!\S)|\s+"
_LINES = r"\s*[\r\n]+"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|" + _SPACE
_LLAMA3 = rf"{_SUFFIX}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_LINES}|{_SPACE}"
_QWEN2 = rf"{_SUFFIX}|{_WORD}|\p{{N}}|{_SYMBOLS}|{_LINES}|{_SPACE}"
_QWEN35 = (
    rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES}|{_SPACE}"
)
_DIGIT = r"\p{N}"
_UP_TO_THREE_DIGITS = r"\p{N}{1,3}"

# Words of capitals, then of small letters, as o200k and Tekken cut them.
_HEAD = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_TAIL = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_SYMBOLS_AND_SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = (
    rf"{_BEFORE}{_HEAD}*{_TAIL}+|{_BEFORE}{_HEAD}+{_TAIL}*|\p{{N}}"
    rf"|{_SYMBOLS_AND_SLASHES}|{_LINES}|{_SPACE}"
)


def _o200k(digits: str) -> str:
    return (
        rf"{_BEFORE}{_HEAD}*{_TAIL}+{_SUFFIX}?|{_BEFORE}{_HEAD}+{_TAIL}*{_SUFFIX}?|{digits}"
        rf"|{_SYMBOLS_AND_SLASHES}|{_LINES}|{_SPACE}"
    )


_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_LINES}|{_SPACE}"
)
_DEEPSEEK_V3 = PreTokenizer((_UP_TO_THREE_DIGITS, _CJK, _DEEPSEEK_WORDS))
_DEEPSEEK_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
# The cased letters of the Unicode version of its day, as DeepSeek LLM's tokenizer lists them.
_CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-"
    "\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-"
    "\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15"
    "\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d"
    "\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183"
    "\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-"
    "\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb"
    "\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"

_ROWS: tuple[tuple[tuple[str, ...], PreTokenizer], ...] = (
    (
        (
            *("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "gigachat"),
            *("a.x-4.0", "mellum", "exaone4"),
        ),
        PreTokenizer((_GPT2,)),
    ),
    (
        ("default",),
        PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    ),
    (
        (
            *("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
            "mellum2",
        ),
        PreTokenizer((_DIGIT, _GPT2)),
    ),
    (
        (
            *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0"),
            "lfm2",
        ),
        PreTokenizer((_LLAMA3,), ignore_merges=True, adds_bos=True),
    ),
    (("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), PreTokenizer((_LLAMA3,))),
    (("qwen2",), PreTokenizer((_QWEN2,), normalizer="NFC")),
    (("qwen35",), PreTokenizer((_QWEN35,), normalizer="NFC")),
    (
        (
            *("stablelm2", "deepseek-r1-qwen", "megrez", "hunyuan", "kormo", "grok-2"),
            "solar-open",
        ),
        PreTokenizer((_QWEN2,)),
    ),
    (("gpt-4o", "llama4", "kanana2", "minimax-m2"), PreTokenizer((_o200k(r"\p{N}{1,3}"),))),
    (
        ("tiny_aya", "cohere2moe"),
        PreTokenizer((r"\d{1,3}(?=(?:\d{3})*\b)", _o200k(r"\p{N}{1,3}"))),
    ),
    (("tekken",), PreTokenizer((_TEKKEN,), ignore_merges=True, adds_bos=True)),
    (
        ("deepseek-llm",),
        PreTokenizer(
            (
                r"[\r\n]",
                rf"\s?[{_CASED_LETTERS}]+",
                "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
                r"\s+$",
                _DEEPSEEK_CJK,
                r"\p{N}+",
            )
        ),
    ),
    (
        ("deepseek-coder",),
        PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, _DIGIT)),
    ),
    (("deepseek-v3", "hunyuan-dense", "joyai-llm"), _DEEPSEEK_V3),
    (
        ("falcon",),
        PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    ),
    (("poro-chat", "bloom", "gpt3-finnish"), PreTokenizer((_BLOOM,))),
    (("viking",), PreTokenizer((_BLOOM, _DIGIT))),
    (
        ("seed-coder",),
        PreTokenizer((rf"{_SUFFIX}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_LINES}|{_SPACE}",)),
    ),
    (
        ("bailingmoe", "bailingmoe2", "llada-moe"),
        PreTokenizer(
            (
                r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}"
                r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|" + _SPACE,
            )
        ),
    ),
)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType(
    {name: row for names, row in _ROWS for name in names}
)
