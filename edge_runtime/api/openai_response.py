"""Writes an answer as the JSON body of an OpenAI-style completion.

Knows the wire form and the tokenizer; knows no HTTP, no file and no engine.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from edge_runtime.engine.request import (
    ChosenLogprob,
    Completion,
    FinishReason,
    TokenLogprob,
    Usage,
)
from edge_runtime.guidance.answer_parser import AnswerParser
from edge_runtime.guidance.answer_parts import message_of
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
    head: ReplyHead,
    answers: Sequence[Completion],
    tokenizer: Tokenizer,
    new_parser: Callable[[], AnswerParser] = AnswerParser,
) -> dict[str, Any]:
    """The ``chat.completion`` object of one answer or more to the same prompt.

    Args:
        head: what it says of itself.
        answers: whole.
        tokenizer: names the tokens of logprobs.
        new_parser: takes one answer apart.
    """
    messages = [_message(answer.text, new_parser()) for answer in answers]
    choices = [
        {
            "index": index,
            "message": message,
            "logprobs": chat_logprobs(answer.logprobs, answer.finish_reason, tokenizer),
            "finish_reason": chat_finish_reason(answer.finish_reason, "tool_calls" in message),
        }
        for index, (answer, message) in enumerate(zip(answers, messages, strict=True))
    ]
    return _reply(head, "chat.completion", choices, [answer.usage for answer in answers])


def chat_finish_reason(reason: FinishReason, has_calls: bool) -> str:
    """Why an answer ended, as chat says it: with calls it waits for their results."""
    return "tool_calls" if has_calls and reason is FinishReason.STOP else reason.value


def _message(text: str, parser: AnswerParser) -> dict[str, Any]:
    whole = message_of([*parser.feed(text), *parser.finish()])
    message: dict[str, Any] = {"role": "assistant", "content": whole.content, "refusal": None}
    if whole.reasoning:
        message["reasoning_content"] = whole.reasoning
    if whole.tool_calls:
        message["content"] = whole.content or None
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in whole.tool_calls
        ]
    return message


def text_completion(
    head: ReplyHead, answers: Sequence[Completion], tokenizer: Tokenizer
) -> dict[str, Any]:
    """The ``text_completion`` object of one answer or more to the same prompt."""
    choices = [
        {
            "index": index,
            "text": answer.text,
            "logprobs": text_logprobs(answer.logprobs, answer.finish_reason, tokenizer),
            "finish_reason": answer.finish_reason.value,
        }
        for index, answer in enumerate(answers)
    ]
    return _reply(head, "text_completion", choices, [answer.usage for answer in answers])


def usage_object(usages: Sequence[Usage]) -> dict[str, Any]:
    """The ``usage`` of answers to one prompt: it is counted once, and their tokens are added up."""
    prompt, cached = usages[0].prompt_tokens, usages[0].cached_tokens
    completion = sum(usage.completion_tokens for usage in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def timings_object(usage: Usage) -> dict[str, Any]:
    """llama-server's ``timings`` of an answer; rates are None where nothing was measured."""
    read = usage.prompt_tokens - usage.cached_tokens
    written = usage.completion_tokens
    # The first token comes with the prompt's last chunk: decode steps made the others.
    decoded = max(0, written - 1)
    return {
        "cache_n": usage.cached_tokens,
        "prompt_n": read,
        "prompt_ms": usage.prefill_s * 1e3,
        "prompt_per_token_ms": _ratio(usage.prefill_s * 1e3, read),
        "prompt_per_second": _ratio(read, usage.prefill_s),
        "predicted_n": written,
        "predicted_ms": usage.decode_s * 1e3,
        "predicted_per_token_ms": _ratio(usage.decode_s * 1e3, decoded),
        "predicted_per_second": _ratio(decoded, usage.decode_s),
    }


def chat_logprobs(
    entries: Sequence[ChosenLogprob], reason: FinishReason | None, tokenizer: Tokenizer
) -> dict[str, Any] | None:
    """The ``logprobs`` of a choice or of a chunk of it; None without entries."""
    if not entries:
        return None
    kept = _entries_of_text(entries, reason, tokenizer)
    return {"content": [_chat_entry(entry, tokenizer) for entry in kept], "refusal": None}


def text_logprobs(
    entries: Sequence[ChosenLogprob],
    reason: FinishReason | None,
    tokenizer: Tokenizer,
    *,
    offset: int = 0,
) -> dict[str, Any] | None:
    """The older form, for plain completions; offsets count the answer's characters, from one."""
    if not entries:
        return None
    return _columns(_entries_of_text(entries, reason, tokenizer), tokenizer, offset)


def _reply(
    head: ReplyHead, kind: str, choices: list[dict[str, Any]], usages: Sequence[Usage]
) -> dict[str, Any]:
    return {
        "id": head.id,
        "object": kind,
        "created": head.created,
        "model": head.model,
        "choices": choices,
        "usage": usage_object(usages),
    }


def _ratio(amount: float, per: float) -> float | None:
    return amount / per if per else None


def _entries_of_text(
    entries: Sequence[ChosenLogprob], reason: FinishReason | None, tokenizer: Tokenizer
) -> Sequence[ChosenLogprob]:
    """The entries without the end token's, which is no part of the text."""
    ended = reason is FinishReason.STOP
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


def _columns(entries: Sequence[ChosenLogprob], tokenizer: Tokenizer, offset: int) -> dict[str, Any]:
    """A list for each property."""
    whole_characters = codecs.getincrementaldecoder("utf-8")("ignore")
    offsets = []
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
