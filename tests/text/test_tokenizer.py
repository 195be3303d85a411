import json
from pathlib import Path
from typing import Any

import pytest
from support.tiny_vocabulary import byte_characters

from edge_runtime.errors import TokenizerError
from edge_runtime.testing import ByteTokenizer
from edge_runtime.text.tokenizer import BundleTokenizer, Tokenizer

SPACES, ACCENTED, END = 300, 301, 302


def added(token_id: int, content: str, *, special: bool) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token_id, "content": content, "special": special, **flags}


def write(path: Path, **parts: Any) -> Path:
    path.write_text(json.dumps({"version": "1.0", **parts}), encoding="utf-8")
    return path


@pytest.fixture
def byte_level_file(tmp_path: Path) -> Path:
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    vocabulary = {character: i for i, character in enumerate(byte_characters())}
    vocabulary |= {"he": 256, "Ġhe": 257, "[PAD 1]": 258, "  ": SPACES, "né": ACCENTED}
    vocabulary["<|end|>"] = END
    return write(
        tmp_path / "tokenizer.json",
        added_tokens=[
            added(SPACES, "  ", special=False),
            added(ACCENTED, "né", special=False),
            added(END, "<|end|>", special=True),
        ],
        pre_tokenizer={**level, "use_regex": True},
        decoder={**level, "use_regex": True},
        model={"type": "BPE", "vocab": vocabulary, "merges": ["h e", "Ġ he"]},
    )


@pytest.fixture
def byte_level(byte_level_file: Path) -> BundleTokenizer:
    return BundleTokenizer.load(byte_level_file, bos_token_id=END)


def load_sentencepiece(path: Path, *, strip: bool = True) -> BundleTokenizer:
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "h", "▁h", "▁▁", "</s>"]
    mark = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    show = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    prepend = [{"type": "Prepend", "prepend": "▁"}] if strip else []
    stripped = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if strip else []
    file = write(
        path / "tokenizer.json",
        added_tokens=[added(261, "</s>", special=True)],
        normalizer={"type": "Sequence", "normalizers": [*prepend, mark]},
        decoder={
            "type": "Sequence",
            "decoders": [show, {"type": "ByteFallback"}, {"type": "Fuse"}, *stripped],
        },
        model={
            "type": "BPE",
            "vocab": {piece: i for i, piece in enumerate(pieces)},
            "merges": ["▁ h", "▁ ▁"],
            "byte_fallback": True,
            "unk_token": "<unk>",
        },
    )
    return BundleTokenizer.load(file, bos_token_id=None)


def test_both_tokenizers_have_the_interface(byte_level: BundleTokenizer) -> None:
    tokenizers: list[Tokenizer] = [byte_level, ByteTokenizer()]
    assert [t.decode(t.encode("he né")) for t in tokenizers] == ["he né"] * 2


def test_special_tokens_are_parsed_by_encode_and_text_to_encode_plain(
    byte_level: BundleTokenizer,
) -> None:
    assert byte_level.encode("he<|end|>") == [256, END]
    plain = byte_level.encode_plain("he<|end|>")
    assert END not in plain
    assert byte_level.decode(plain) == "he<|end|>"
    assert byte_level.encode("he<|end|>") == [256, END]  # the one does not change the other
    assert byte_level.encode_plain("a  b")[1] == SPACES  # ordinary added tokens are text


def test_bos_is_added_once_and_only_when_asked(
    byte_level: BundleTokenizer, byte_level_file: Path
) -> None:
    assert byte_level.encode("he", add_bos=True) == [END, 256]
    assert byte_level.encode("<|end|>he", add_bos=True) == [END, 256]
    assert byte_level.encode("he") == [256]
    without = BundleTokenizer.load(byte_level_file, bos_token_id=None)
    with pytest.raises(TokenizerError, match="no beginning-of-text token"):
        without.encode("he", add_bos=True)


def test_token_bytes_of_byte_level_tokens(byte_level: BundleTokenizer) -> None:
    assert [byte_level.token_bytes(byte) for byte in range(256)] == [
        bytes([byte]) for byte in range(256)
    ]
    assert byte_level.token_bytes(257) == b" he"
    assert byte_level.token_bytes(SPACES) == b"  "
    assert byte_level.token_bytes(ACCENTED) == "né".encode()  # added tokens are plain text
    assert byte_level.token_bytes(258) == b"[PAD 1]"


def test_special_tokens_have_no_bytes_but_a_name(byte_level: BundleTokenizer) -> None:
    assert byte_level.token_bytes(END) == b""
    assert byte_level.is_special(END)
    assert not byte_level.is_special(SPACES)
    assert byte_level.id_to_token(END) == "<|end|>"
    assert byte_level.token_to_id("<|end|>") == END
    assert byte_level.token_to_id("nothing") is None
    assert byte_level.token_to_id("\ud800") is None
    assert byte_level.decode([256, END]) == "he"
    assert byte_level.decode([256, END], skip_special=False) == "he<|end|>"


def test_token_bytes_of_sentencepiece_tokens(tmp_path: Path) -> None:
    tokenizer = load_sentencepiece(tmp_path)
    assert tokenizer.token_bytes(259) == b" h"
    assert tokenizer.token_bytes(260) == b"  "
    assert tokenizer.token_bytes(1 + 0xC3) == b"\xc3"
    assert tokenizer.token_bytes(261) == b""


@pytest.mark.parametrize("strip", [True, False])
def test_sentencepiece_decode_undoes_the_space_that_encode_puts_first(
    tmp_path: Path, strip: bool
) -> None:
    tokenizer = load_sentencepiece(tmp_path, strip=strip)
    for text in ("h", " h", "é h", "日本", ""):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert (tokenizer.token_bytes(tokenizer.encode("h")[0]) == b" h") is strip


def test_ids_past_the_vocabulary_have_no_text_and_no_name(byte_level: BundleTokenizer) -> None:
    assert byte_level.token_bytes(5000) == b""
    with pytest.raises(TokenizerError, match="5000"):
        byte_level.id_to_token(5000)
    for call in (byte_level.token_bytes, byte_level.id_to_token):
        with pytest.raises(TokenizerError, match="-1"):
            call(-1)


def test_invalid_bytes_are_left_out_of_the_text(byte_level: BundleTokenizer) -> None:
    assert byte_level.decode([0xFF, 256, 0xE6, 0x97]) == "he"


@pytest.mark.parametrize("kind", ["encode", "encode_plain"])
def test_lone_surrogate_is_a_tokenizer_error_that_says_where(
    byte_level: BundleTokenizer, kind: str
) -> None:
    with pytest.raises(TokenizerError, match=r"U\+D83D at character 2") as caught:
        getattr(byte_level, kind)("ab\ud83d")
    assert caught.value.hint
    with pytest.raises(TokenizerError):
        getattr(ByteTokenizer(), kind)("ab\ud83d")


def test_lengths_stored_in_the_file_never_cut_a_prompt(byte_level_file: Path) -> None:
    data = json.loads(byte_level_file.read_text(encoding="utf-8"))
    data["truncation"] = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    data["padding"] = {
        "strategy": {"Fixed": 9},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "!",
    }
    byte_level_file.write_text(json.dumps(data), encoding="utf-8")
    tokenizer = BundleTokenizer.load(byte_level_file, bos_token_id=None)
    assert tokenizer.encode("hehehe") == [256, 256, 256]


def test_vocabulary_size_counts_every_token(byte_level: BundleTokenizer) -> None:
    assert byte_level.vocabulary_size == 262
    assert ByteTokenizer().vocabulary_size == 258


@pytest.mark.parametrize("content", ["", "{}", "not json", '{"model": {"type": "Nothing"}}'])
def test_malformed_file_is_a_tokenizer_error(tmp_path: Path, content: str) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        BundleTokenizer.load(file, bos_token_id=None)


def test_missing_file_is_a_tokenizer_error(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"gone\.json: cannot be read"):
        BundleTokenizer.load(tmp_path / "gone.json", bos_token_id=None)


def test_decoder_that_gives_no_bytes_is_refused(tmp_path: Path) -> None:
    model = {"type": "WordPiece", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"}
    model |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    decoder = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    file = write(tmp_path / "tokenizer.json", model=model, decoder=decoder)
    with pytest.raises(TokenizerError, match="WordPiece"):
        BundleTokenizer.load(file, bos_token_id=None)


def test_byte_tokenizer_parses_and_names_its_special_tokens() -> None:
    tokenizer = ByteTokenizer(special=["<s>", "<|end|>"])
    assert tokenizer.encode("a<|end|>", add_bos=True) == [256, ord("a"), 257]
    assert tokenizer.encode("<s>a", add_bos=True) == [256, ord("a")]
    assert tokenizer.encode_plain("<s>") == list(b"<s>")
    assert tokenizer.decode([256, 97, 257], skip_special=False) == "<s>a<|end|>"
    assert tokenizer.decode([256, 97, 257]) == "a"
    names = [tokenizer.id_to_token(i) for i in range(tokenizer.vocabulary_size)]
    assert [tokenizer.token_to_id(name) for name in names] == list(range(258))
    with pytest.raises(TokenizerError):
        tokenizer.id_to_token(258)


def test_a_split_pattern_that_would_search_for_ever_is_a_tokenizer_error(
    tmp_path: Path, byte_level_file: Path
) -> None:
    plain = json.loads(byte_level_file.read_text(encoding="utf-8"))
    endless = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated"}
    plain["pre_tokenizer"] = {**endless, "invert": False}
    tokenizer = BundleTokenizer.load(write(tmp_path / "endless.json", **plain), bos_token_id=None)
    with pytest.raises(TokenizerError, match="cannot encode the text"):
        tokenizer.encode("a" * 40 + "b")
    assert tokenizer.encode("x") == [ord("x")]
