"""The text that layers are calibrated on, and its tokens in a model's own vocabulary.

Prose, dialogue, code, tables and several languages, written for this project; it shares nothing with
the text that quality is measured on. Knows no model but its tokenizer.
"""

from __future__ import annotations

from importlib.resources import files

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

# More tokens make a better estimate and a slower export. On 135M weights the divergence from the
# source was 0.108 a token with 1,024, 0.103 with 2,048 and 0.099 with 3,072.
_MOST_TOKENS = 1024
_WINDOW = 512
_SEPARATOR = "\n-----\n"


def calibration_text() -> str:
    """The whole text, its parts separated by empty lines."""
    text = files(__package__).joinpath("calibration_text.txt").read_text(encoding="utf-8")
    return "\n\n".join(part.strip("\n") for part in text.split(_SEPARATOR))


def calibration_windows(
    tokenizer_json: str, *, begin_token_id: int | None, context_length: int
) -> list[NDArray[np.int64]]:
    """The text's token ids, in windows that are each read from position 0.

    Args:
        tokenizer_json: as Hugging Face's ``tokenizers`` reads it.
        begin_token_id: the token before every window; None for none.
        context_length: the most tokens that the model reads.

    Returns:
        int64 (tokens,) of at most 512 tokens each, 1,024 in all.
    """
    ids = _tokens(tokenizer_json)[:_MOST_TOKENS]
    begin = np.array([] if begin_token_id is None else [begin_token_id], np.int64)
    step = max(1, min(_WINDOW, context_length) - len(begin))
    return [np.concatenate([begin, ids[i : i + step]]) for i in range(0, len(ids), step)]


def unseen_tokens(
    tokenizer_json: str, *, begin_token_id: int | None, count: int
) -> NDArray[np.int64]:
    """Tokens of the text's end, which calibration does not read where the text is long enough.

    Args:
        tokenizer_json: as Hugging Face's ``tokenizers`` reads it.
        begin_token_id: the token before them; None for none.
        count: how many, at most.
    """
    begin = np.array([] if begin_token_id is None else [begin_token_id], np.int64)
    ids = _tokens(tokenizer_json)
    start = min(_MOST_TOKENS, max(0, len(ids) - count))
    return np.concatenate([begin, ids[start:]])[:count]


def _tokens(tokenizer_json: str) -> NDArray[np.int64]:
    encoding = Tokenizer.from_str(tokenizer_json).encode(
        calibration_text(), add_special_tokens=False
    )
    return np.array(encoding.ids, np.int64)
