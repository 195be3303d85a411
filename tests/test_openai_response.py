from __future__ import annotations

import json
import math

import pytest

from edge_runtime.api.openai_response import ReplyHead, chat_completion, text_completion
from edge_runtime.engine.request import (
    ChosenLogprob,
    Completion,
    FinishReason,
    TokenLogprob,
    Usage,
)
from edge_runtime.testing import ByteTokenizer

TOKENIZER = ByteTokenizer()
END = TOKENIZER.encode("<|end|>")[0]
HEAD = ReplyHead("id-1", 1_700_000_000, "m")


def answer(text: str, *, logprobs: bool, end: bool = True) -> Completion:
    ids = [*text.encode(), *([END] if end else [])]
    entries = [
        ChosenLogprob(TokenLogprob(i, -0.5), (TokenLogprob(i, -0.5), TokenLogprob(END, -math.inf)))
        for i in ids
    ]
    return Completion(
        text, tuple(ids), tuple(entries) if logprobs else (),
        FinishReason.STOP if end else FinishReason.LENGTH,
        Usage(10, 4, len(ids), 0.1, 0.1, 0.1),
    )  # fmt: skip


def test_a_chat_answer_has_a_message_and_counts():
    assert chat_completion(HEAD, [answer("Hi", logprobs=False)], TOKENIZER) == {
        "id": "id-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hi", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 10,
            "completion_tokens": 3,
            "total_tokens": 13,
            "prompt_tokens_details": {"cached_tokens": 4},
        },
    }


def test_chat_logprobs_give_text_and_bytes_without_the_end_token():
    choice = chat_completion(HEAD, [answer("é", logprobs=True)], TOKENIZER)["choices"][0]
    first, second = choice["logprobs"]["content"]
    assert (first["token"], first["bytes"], first["logprob"]) == ("\ufffd", [0xC3], -0.5)
    assert second["bytes"] == [0xA9]
    end = first["top_logprobs"][1]
    assert (end["token"], end["bytes"], end["logprob"]) == ("<|end|>", None, -9999.0)


def test_completion_logprobs_are_columns_with_offsets_in_characters():
    body = text_completion(HEAD, [answer("aéb", logprobs=True, end=False)], TOKENIZER)
    choice = body["choices"][0]
    assert (body["object"], choice["text"], choice["finish_reason"]) == (
        "text_completion", "aéb", "length",
    )  # fmt: skip
    columns = choice["logprobs"]
    assert columns["tokens"] == ["a", "bytes:\\xc3", "bytes:\\xa9", "b"]
    assert columns["text_offset"] == [0, 1, 1, 2]
    assert columns["token_logprobs"] == [-0.5] * 4
    assert columns["top_logprobs"][0] == {"a": -0.5, "<|end|>": -9999.0}


@pytest.mark.parametrize("write", [chat_completion, text_completion])
def test_an_answer_is_json_without_infinities(write):
    json.dumps(write(HEAD, [answer("x", logprobs=True)], TOKENIZER), allow_nan=False)
