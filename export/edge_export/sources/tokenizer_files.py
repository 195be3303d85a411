"""The tokenizer files of a bundle, whatever source they were made from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class TokenizerFiles:
    """The tokenizer of a bundle.

    Args:
        tokenizer_json: for Hugging Face's ``tokenizers``; its post-processor adds the
            beginning-of-text token where ``add_bos`` says so.
        tokenizer_config_json: what transformers and onnxruntime-genai read beside it.
        chat_template: the template's Jinja source, or None.
        special_tokens: ``bos_token``, ``eos_token``, ``unk_token``, ``pad_token`` -> text; only
            those that the model has.
        bos_token_id: the beginning-of-text token, or None.
        add_bos: whether a prompt begins with it.
        end_token_ids: every token that ends an answer, in rising order.
    """

    tokenizer_json: str
    tokenizer_config_json: str
    chat_template: str | None
    special_tokens: dict[str, str]
    bos_token_id: int | None
    add_bos: bool
    end_token_ids: tuple[int, ...]


def tokenizer_config(
    special_tokens: Mapping[str, str], *, add_bos: bool, template: str | None
) -> str:
    """What ``tokenizer_config.json`` says, for transformers and onnxruntime-genai."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": add_bos,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        **special_tokens,
        **({"chat_template": template} if template is not None else {}),
    }
    return json.dumps(config, ensure_ascii=False, indent=2)
