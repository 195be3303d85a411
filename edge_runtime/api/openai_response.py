"""Writes an answer as the JSON body of an OpenAI-style completion.

Knows the wire form and the tokenizer; knows no HTTP, no file and no engine.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edge_runtime.engine.request import (
    ChosenLogprob,
    Completion,
    FinishReason,
    TokenLogprob,
    Usage,
)
from edge_runtime.text.tokenizer import Tokenizer

# JSON has no infinity; this is what OpenAI writes for a token without any probability.
_LEAST_LOGPROB = -9999.0


@dataclass(frozen=True)
class ReplyHead:
    """What a reply says of itself: its id, its time (seconds since 1970) and the model's name."""

    id: str
    created: int
    model: str


def chat_completion(
    head: ReplyHead, completion: Completion, tokenizer: Tokenizer
) -> dict[str, Any]:
    """The ``chat.completion`` object of an answer."""
    entries = _entries_of_text(completion, tokenizer)
    content = [_chat_entry(entry, tokenizer) for entry in entries]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": completion.text, "refusal": None},
        "logprobs": {"content": content, "refusal": None} if completion.logprobs else None,
        "finish_reason": completion.finish_reason.value,
    }
    return _reply(head, "chat.completion", choice, completion.usage)


def text_completion(
    head: ReplyHead, completion: Completion, tokenizer: Tokenizer
) -> dict[str, Any]:
    """The ``text_completion`` object of an answer."""
    entries = _entries_of_text(completion, tokenizer)
    choice = {
        "index": 0,
        "text": completion.text,
        "logprobs": _columns(entries, tokenizer) if completion.logprobs else None,
        "finish_reason": completion.finish_reason.value,
    }
    return _reply(head, "text_completion", choice, completion.usage)


def _reply(head: ReplyHead, kind: str, choice: dict[str, Any], usage: Usage) -> dict[str, Any]:
    return {
        "id": head.id,
        "object": kind,
        "created": head.created,
        "model": head.model,
        "choices": [choice],
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        },
    }


def _entries_of_text(completion: Completion, tokenizer: Tokenizer) -> Sequence[ChosenLogprob]:
    """The entries without the end token's, which is no part of the text."""
    entries = completion.logprobs
    ended = completion.finish_reason is FinishReason.STOP
    if entries and ended and tokenizer.is_special(entries[-1].chosen.token_id):
        return entries[:-1]
    return entries


def _chat_entry(entry: ChosenLogprob, tokenizer: Tokenizer) -> dict[str, Any]:
    top = [_chat_token(other, tokenizer) for other in entry.top]
    return _chat_token(entry.chosen, tokenizer) | {"top_logprobs": top}


def _chat_token(entry: TokenLogprob, tokenizer: Tokenizer) -> dict[str, Any]:
    """A token by text and bytes: one token may be a part of a character; a special one has none."""
    held = tokenizer.token_bytes(entry.token_id)
    special = tokenizer.is_special(entry.token_id)
    text = tokenizer.id_to_token(entry.token_id) if special else held.decode("utf-8", "replace")
    return {
        "token": text,
        "logprob": max(entry.logprob, _LEAST_LOGPROB),
        "bytes": list(held) or None,
    }


def _columns(entries: Sequence[ChosenLogprob], tokenizer: Tokenizer) -> dict[str, Any]:
    """The older form: a list for each property. Offsets count the answer's characters."""
    whole_characters = codecs.getincrementaldecoder("utf-8")("ignore")
    offsets, offset = [], 0
    for entry in entries:
        offsets.append(offset)
        offset += len(whole_characters.decode(tokenizer.token_bytes(entry.chosen.token_id)))
    return {
        "tokens": [_token_name(entry.chosen.token_id, tokenizer) for entry in entries],
        "token_logprobs": [max(entry.chosen.logprob, _LEAST_LOGPROB) for entry in entries],
        "top_logprobs": [
            {
                _token_name(other.token_id, tokenizer): max(other.logprob, _LEAST_LOGPROB)
                for other in entry.top
            }
            for entry in entries
        ],
        "text_offset": offsets,
    }


def _token_name(token_id: int, tokenizer: Tokenizer) -> str:
    """A token's text, or its bytes where they are no text by themselves: names here are keys."""
    if tokenizer.is_special(token_id):
        return tokenizer.id_to_token(token_id)
    held = tokenizer.token_bytes(token_id)
    try:
        return held.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in held)
