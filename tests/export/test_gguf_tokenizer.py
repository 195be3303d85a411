import itertools
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edge_export.sources.gguf import open_gguf
from edge_export.sources.gguf_pre_tokenizers import PRE_TOKENIZERS
from edge_export.sources.gguf_tokenizer import TokenizerFiles, build_tokenizer
from support.tiny_vocabulary import (
    BYTE,
    CHAT_TEMPLATE,
    CONTROL,
    NORMAL,
    USER_DEFINED,
    byte_level_metadata,
    sentencepiece_metadata,
)
from tokenizers import Tokenizer as LibraryTokenizer

from edge_runtime.errors import SourceFormatError, UnsupportedModelError
from edge_runtime.text.detokenizer import StreamingDetokenizer
from edge_runtime.text.tokenizer import BundleTokenizer

VECTORS = Path(__file__).parents[3] / "shared" / "data" / "tokenizers"
needs_vectors = pytest.mark.skipif(
    not VECTORS.is_dir(), reason=f"the shared tokenizer vectors are not at {VECTORS}"
)


def build(metadata: Mapping[str, Any]) -> tuple[TokenizerFiles, BundleTokenizer]:
    files = build_tokenizer(metadata)
    library = LibraryTokenizer.from_str(files.tokenizer_json)
    return files, BundleTokenizer(library, bos_token_id=files.bos_token_id)


def tokens(metadata: Mapping[str, Any], text: str, *, parse: bool = True) -> list[str]:
    _, tokenizer = build(metadata)
    encode: Callable[[str], list[int]] = tokenizer.encode if parse else tokenizer.encode_plain
    return [tokenizer.id_to_token(i) for i in encode(text)]


# --- byte-level BPE


def test_byte_level_merges_by_rank_and_falls_back_to_bytes() -> None:
    assert tokens(byte_level_metadata(), "hello w") == ["hello", "Ġw"]
    assert tokens(byte_level_metadata(), "é") == ["Ã", "©"]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["Ġ1", "2", "3"]),  # one word
        ("smollm", ["Ġ", "1", "2", "3"]),  # each digit is a word
        ("llama-bpe", ["Ġ", "123"]),  # up to three digits without the space
        ("qwen2", ["Ġ", "1", "2", "3"]),
    ],
)
def test_pre_tokenizer_decides_how_digits_are_cut(pre: str, expected: list[str]) -> None:
    metadata = byte_level_metadata(pre)
    if pre == "gpt-2":  # the merge of space and digit must win for the word to show
        metadata["tokenizer.ggml.merges"] = ["Ġ 1", *metadata["tokenizer.ggml.merges"]]
    assert tokens(metadata, " 123") == expected


def test_ignore_merges_takes_a_whole_word_that_no_merge_makes() -> None:
    metadata = byte_level_metadata("llama-bpe")
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "xyz"]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], NORMAL]
    assert tokens(metadata, "xyz") == ["xyz"]
    assert tokens({**metadata, "tokenizer.ggml.pre": "gpt-2"}, "xyz") == ["x", "y", "z"]


def test_qwen2_composes_characters_first_as_its_own_tokenizer_does() -> None:
    assert tokens(byte_level_metadata("qwen2"), "e\u0301") == ["Ã", "©"]
    assert tokens(byte_level_metadata("smollm"), "e\u0301") == ["e", "Ì", "ģ"]


def test_unknown_pre_tokenizer_is_refused_by_name_with_the_known_ones() -> None:
    with pytest.raises(UnsupportedModelError, match="'my-bpe'") as caught:
        build_tokenizer(byte_level_metadata("my-bpe"))
    assert caught.value.hint is not None
    assert "llama-bpe" in caught.value.hint
    assert "qwen2" in caught.value.hint


def test_missing_pre_tokenizer_is_refused_rather_than_guessed() -> None:
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.ggml\.pre"):
        build_tokenizer(byte_level_metadata(pre=None))  # type: ignore[arg-type]


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
def test_every_pre_tokenizer_loads_and_loses_no_text(pre: str) -> None:
    _, tokenizer = build(byte_level_metadata(pre))
    text = "Hello, y'all! I'LL  pay 1234.50\u20ac\r\n\n\t日本語テスト 😀 ½ $x+y=z …end  "
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("kind", ["bert", "t5", "rwkv"])
def test_other_kinds_of_vocabulary_are_refused_by_name(kind: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"'{kind}'"):
        build_tokenizer(byte_level_metadata(model=kind))


# --- added tokens


def test_longest_user_defined_run_of_spaces_is_taken_first_and_is_text() -> None:
    metadata = byte_level_metadata()
    assert tokens(metadata, "a       b") == ["a", "    ", "  ", "Ġ", "b"]
    assert tokens(metadata, "a  b", parse=False) == ["a", "  ", "b"]
    _, tokenizer = build(metadata)
    assert tokenizer.decode(tokenizer.encode("a      naïve b")) == "a      naïve b"


def test_control_tokens_are_special_and_user_defined_are_not() -> None:
    _, tokenizer = build(byte_level_metadata())
    special = {
        tokenizer.id_to_token(i)
        for i in range(tokenizer.vocabulary_size)
        if tokenizer.is_special(i)
    }
    assert special == {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}


def test_end_of_turn_token_of_the_wrong_type_is_made_special() -> None:
    metadata = byte_level_metadata()
    types = list(metadata["tokenizer.ggml.token_type"])
    types[metadata["tokenizer.ggml.tokens"].index("<|im_end|>")] = USER_DEFINED
    metadata["tokenizer.ggml.token_type"] = types
    files, tokenizer = build(metadata)
    end = files.end_token_ids[-1]
    assert tokenizer.id_to_token(end) == "<|im_end|>"
    assert end not in tokenizer.encode_plain("<|im_end|>")
    assert tokenizer.encode("<|im_end|>") == [end]


def test_phi3_turn_tokens_swallow_the_space_after_them() -> None:
    metadata = sentencepiece_metadata() | {"general.name": "Phi-3 mini"}
    assert tokens(metadata, "<|user|> \n the") == ["<|user|>", "▁the"]
    del metadata["general.name"]
    assert tokens(metadata, "<|user|> the") == ["<|user|>", "▁", "▁the"]


# --- SentencePiece


def test_sentencepiece_prefixes_a_space_to_every_stretch_of_text() -> None:
    assert tokens(sentencepiece_metadata(), "the") == ["▁the"]
    assert tokens(sentencepiece_metadata(), "the</s>the") == ["▁the", "</s>", "▁the"]
    assert tokens(sentencepiece_metadata(add_space_prefix=False), "the") == ["t", "he"]


def test_sentencepiece_merges_the_best_score_first() -> None:
    # "ab" scores above "bc": "bc" can only be made where no "ab" took its b.
    assert tokens(sentencepiece_metadata(add_space_prefix=False), "abc") == ["abc"]
    assert tokens(sentencepiece_metadata(add_space_prefix=False), "bbc") == ["b", "bc"]


def test_unknown_characters_become_bytes() -> None:
    metadata = sentencepiece_metadata(add_space_prefix=False)
    assert tokens(metadata, "日é\n") == ["日", "<0xC3>", "<0xA9>", "<0x0A>"]
    _, tokenizer = build(metadata)
    assert tokenizer.decode(tokenizer.encode("日é\n😀")) == "日é\n😀"


def test_user_text_never_merges_into_a_control_token() -> None:
    metadata = sentencepiece_metadata(add_space_prefix=False)
    assert tokens(metadata, "</s>", parse=False) == ["</s", ">"]
    assert tokens(metadata, "</s>") == ["</s>"]


def test_user_defined_tokens_match_the_raw_text() -> None:
    assert tokens(sentencepiece_metadata(), "a   b\n\nthe") == [
        *["▁", "a", "   ", "▁", "b", "\n\n"],
        "▁the",
    ]


def reference_sentencepiece(metadata: Mapping[str, Any], text: str) -> list[str]:
    """Merge the best-scored adjacent pair, the leftmost of equals, until none is a piece."""
    types = dict(
        zip(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"], strict=True)
    )
    scores = dict(
        zip(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"], strict=True)
    )
    pieces = {t: s for t, s in scores.items() if types[t] not in (CONTROL, BYTE, 2)}
    symbols = list("▁" + text.replace(" ", "▁"))
    while True:
        pairs = [
            (-pieces[a + b], at)
            for at, (a, b) in enumerate(itertools.pairwise(symbols))
            if a + b in pieces
        ]
        if not pairs:
            break
        at = min(pairs)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    spelled: list[str] = []
    for symbol in symbols:
        spelled += [symbol] if symbol in pieces else [f"<0x{b:02X}>" for b in symbol.encode()]
    return spelled


def test_merges_from_scores_follow_the_plain_algorithm() -> None:
    metadata = sentencepiece_metadata()
    _, tokenizer = build(metadata)
    draw = random.Random(7)
    for _ in range(300):
        text = "".join(draw.choices("  theinabc</s>日x", k=draw.randint(1, 12)))
        if "   " in text:
            continue  # a user-defined token, found before anything is merged
        got = [tokenizer.id_to_token(i) for i in tokenizer.encode_plain(text)]
        assert got == reference_sentencepiece(metadata, text), text


# --- special ids, template, files


def test_end_tokens_are_the_union_of_file_names_and_template() -> None:
    metadata = byte_level_metadata()
    ids = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    metadata["tokenizer.ggml.eos_token_id"] = ids["<|endoftext|>"]
    assert build_tokenizer(metadata).end_token_ids == (ids["<|endoftext|>"], ids["<|im_end|>"])
    metadata["tokenizer.ggml.eot_token_id"] = ids["<|im_start|>"]
    assert ids["<|im_start|>"] in build_tokenizer(metadata).end_token_ids


def test_end_token_that_only_the_template_writes_counts_and_is_parsed() -> None:
    metadata = byte_level_metadata()
    types = list(metadata["tokenizer.ggml.token_type"])
    end = metadata["tokenizer.ggml.tokens"].index("<|im_end|>")
    types[end] = NORMAL
    eos = metadata["tokenizer.ggml.tokens"].index("<|endoftext|>")
    metadata |= {
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.eos_token_id": eos,
        "tokenizer.ggml.padding_token_id": eos,
    }
    assert build_tokenizer(metadata).end_token_ids == (eos,)
    files, tokenizer = build(metadata | {"tokenizer.chat_template": CHAT_TEMPLATE})
    assert files.end_token_ids == (eos, end)
    assert tokenizer.encode("<|im_end|>") == [end]


def test_harmony_message_end_does_not_end_the_turn() -> None:
    metadata = byte_level_metadata()
    extra = ["<|end|>", "<|return|>", "<|call|>"]
    metadata["tokenizer.ggml.tokens"] = metadata["tokenizer.ggml.tokens"] + extra
    metadata["tokenizer.ggml.token_type"] = metadata["tokenizer.ggml.token_type"] + [CONTROL] * 3
    ends = build_tokenizer(metadata).end_token_ids
    names = {metadata["tokenizer.ggml.tokens"][i] for i in ends}
    assert {"<|return|>", "<|call|>"} <= names
    assert "<|end|>" not in names


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (byte_level_metadata("smollm"), False),
        (byte_level_metadata("llama-bpe"), True),
        (byte_level_metadata("llama-bpe", add_bos_token=False), False),
        (byte_level_metadata("smollm", add_bos_token=True), True),
        (byte_level_metadata("llama-bpe", bos_token_id=None), False),
        (sentencepiece_metadata(), True),
        (sentencepiece_metadata(bos_token_id=None), True),  # token 1 unless the file says else
        (sentencepiece_metadata(add_bos_token=False), False),
    ],
)
def test_add_bos_is_what_the_file_says_or_its_kind_implies(
    metadata: dict[str, Any], expected: bool
) -> None:
    files, tokenizer = build(metadata)
    assert files.add_bos is expected
    library = LibraryTokenizer.from_str(files.tokenizer_json)
    with_special = library.encode("the", add_special_tokens=True).ids
    assert with_special == tokenizer.encode("the", add_bos=expected)


def test_add_bos_without_the_token_is_an_error() -> None:
    with pytest.raises(SourceFormatError, match="bos_token_id"):
        build_tokenizer(byte_level_metadata(add_bos_token=True, bos_token_id=None))


def test_special_token_ids_that_mean_none_are_left_out() -> None:
    files = build_tokenizer(byte_level_metadata(padding_token_id=2**32 - 1, unknown_token_id=-1))
    assert sorted(files.special_tokens) == ["bos_token", "eos_token"]


def test_config_names_special_tokens_and_template() -> None:
    files = build_tokenizer(byte_level_metadata() | {"tokenizer.chat_template": CHAT_TEMPLATE})
    config = json.loads(files.tokenizer_config_json)
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert config["bos_token"] == files.special_tokens["bos_token"] == "<|im_start|>"
    assert config["eos_token"] == config["pad_token"] == "<|im_end|>"
    assert config["unk_token"] == "<|endoftext|>"
    assert config["chat_template"] == files.chat_template == CHAT_TEMPLATE
    assert build_tokenizer(byte_level_metadata()).chat_template is None


def test_arrays_may_come_from_numpy() -> None:
    metadata = sentencepiece_metadata()
    arrays = {
        "tokenizer.ggml.token_type": np.array(metadata["tokenizer.ggml.token_type"], np.int32),
        "tokenizer.ggml.scores": np.array(metadata["tokenizer.ggml.scores"], np.float32),
        "tokenizer.ggml.tokens": np.array(metadata["tokenizer.ggml.tokens"], dtype=object),
        "tokenizer.ggml.eos_token_id": np.uint32(2),
    }
    assert build_tokenizer(metadata | arrays) == build_tokenizer(metadata)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "no tokenizer"),
        (byte_level_metadata(tokens=[]), "empty"),
        (byte_level_metadata(tokens=["a", "b", "a"]), "'a' twice"),
        (byte_level_metadata(tokens="abc"), "should be an array"),
        (byte_level_metadata(tokens=["a", 3]), "holds 3"),
        (byte_level_metadata(tokens=["a", "\ud800"]), "not UTF-8"),
        (byte_level_metadata(token_type=[1, 1]), "2 values for"),
        (byte_level_metadata(merges=None), "merges is missing"),
        (byte_level_metadata(merges=["h e", "hello"]), "'hello' is no pair"),
        (byte_level_metadata(merges=["h q"]), "'h q' is no pair"),
        (sentencepiece_metadata(scores=None), "scores is missing"),
        (byte_level_metadata(add_bos_token="yes"), "type bool, found 'yes'"),
        (byte_level_metadata(eos_token_id="two"), "token id, found 'two'"),
    ],
)
def test_inconsistent_metadata_is_named(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceFormatError, match=message):
        build_tokenizer(metadata)


# --- conformance with the shared vocabularies


@pytest.fixture(scope="module", params=["llama-spm", "llama-bpe", "gpt-2", "qwen2", "starcoder"])
def vectors(request: pytest.FixtureRequest) -> tuple[BundleTokenizer, list[str], list[list[int]]]:
    path = VECTORS / f"ggml-vocab-{request.param}.gguf"
    with open_gguf(path) as checkpoint:
        _, tokenizer = build(checkpoint.metadata)
    inputs = path.with_name(f"{path.name}.inp").read_bytes().decode("utf-8")
    outputs = path.with_name(f"{path.name}.out").read_text(encoding="utf-8")
    expected = [[int(word) for word in line.split()] for line in outputs.splitlines()]
    return tokenizer, inputs.split("\n__ggml_vocab_test__\n"), expected


@needs_vectors
def test_every_shared_vector_matches(
    vectors: tuple[BundleTokenizer, list[str], list[list[int]]],
) -> None:
    tokenizer, inputs, expected = vectors
    assert len(inputs) >= len(expected) > 40
    for text, ids in zip(inputs, expected, strict=False):
        assert tokenizer.encode_plain(text) == ids, text


@needs_vectors
@pytest.mark.parametrize(
    "text",
    ["日本語の文章を、少しずつ。", "👩‍👩‍👧 🏳️‍🌈 😶‍🌫️", "שָׁלוֹם ක්‍රියා नमस्ते", "Cafe\u0301 x\u0335"],
)
def test_text_round_trips_and_streams_in_whole_characters(
    vectors: tuple[BundleTokenizer, list[str], list[list[int]]], text: str
) -> None:
    tokenizer, _, _ = vectors
    ids = tokenizer.encode_plain(text)
    decoded = tokenizer.decode(ids)
    if "Cafe" not in text:  # a vocabulary that composes gives the composed form back
        assert decoded == text
    stream = StreamingDetokenizer(tokenizer)
    pieces = [stream.add(i) for i in ids]
    assert not any("\ufffd" in piece for piece in pieces)
    assert ("".join(pieces) + stream.flush()).removeprefix(" ") == decoded
