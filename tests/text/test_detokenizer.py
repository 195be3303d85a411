import random

import pytest

from edge_runtime.testing import ByteTokenizer
from edge_runtime.text.detokenizer import StreamingDetokenizer

BOS, END = 256, 257


def stream(ids: list[int]) -> tuple[list[str], str]:
    detokenizer = StreamingDetokenizer(ByteTokenizer())
    return [detokenizer.add(token_id) for token_id in ids], detokenizer.flush()


@pytest.mark.parametrize("text", ["日本語", "😀👩‍👩‍👧", "e\u0301x\u0335", "ab", "שָׁלוֹם", "\ufffd"])
def test_characters_split_over_tokens_come_whole_and_as_soon_as_complete(text: str) -> None:
    ids = list(text.encode())
    pieces, rest = stream(ids)
    assert [piece for piece in pieces if piece] == list(text)
    assert rest == ""
    ends = [len(text[: i + 1].encode()) - 1 for i in range(len(text))]
    assert [i for i, piece in enumerate(pieces) if piece] == ends


def test_incomplete_character_at_the_end_is_dropped() -> None:
    assert stream([*b"a", *"日".encode()[:2]]) == (["a", "", ""], "")


def test_invalid_bytes_are_left_out_and_what_follows_is_kept() -> None:
    pieces, rest = stream([0x80, *b"a", 0xE6, *b"b", 0xFF, 0xC3, *"é".encode()])
    assert "".join(pieces) + rest == "abé"


def test_special_tokens_give_no_text_and_break_no_character() -> None:
    first, second = "é".encode()
    assert stream([BOS, first, END, second, END])[0] == ["", "", "", "é", ""]


def test_detokenizer_starts_afresh_after_a_flush() -> None:
    detokenizer = StreamingDetokenizer(ByteTokenizer())
    detokenizer.add(0xE6)
    detokenizer.flush()
    assert detokenizer.add(ord("a")) == "a"


def test_pieces_together_are_the_decoded_bytes_whatever_the_tokens() -> None:
    draw = random.Random(3)
    tokenizer = ByteTokenizer()
    valid = [*"日é😀ñ".encode(), *b"xyz"]
    for _ in range(300):
        ids = [
            draw.choice(valid) if draw.random() < 0.8 else draw.randrange(258)
            for _ in range(draw.randint(0, 20))
        ]
        pieces, rest = stream(ids)
        data = b"".join(tokenizer.token_bytes(i) for i in ids)
        assert "".join(pieces) + rest == data.decode("utf-8", errors="ignore")
        assert "\ufffd" not in "".join(pieces)
