"""From the tokenizer files of a Hugging Face directory to those of a bundle, and its defaults.

tokenizer.json is taken as it is, with what tokenizer_config.json adds to it. Knows no weights, and
renders no template.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_export.sources.end_tokens import end_token_ids
from edge_export.sources.hugging_face import read_json
from edge_export.sources.tokenizer_files import TokenizerFiles, tokenizer_config
from edge_runtime.bundle import (
    CHAT_TEMPLATE_NAME,
    TOKENIZER_CONFIG_NAME,
    TOKENIZER_NAME,
    GenerationDefaults,
)
from edge_runtime.errors import SourceFormatError, UnsupportedModelError

_GENERATION_NAME = "generation_config.json"
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")
_LARGEST_TEMPLATE = 1 << 20


@dataclass(frozen=True)
class _Tokenizer:
    """A tokenizer.json taken apart: the whole, its ids, and its added tokens by id."""

    data: dict[str, Any]
    ids: Mapping[str, int]
    added: Mapping[int, dict[str, Any]]


def read_tokenizer(path: Path, config: Mapping[str, Any], vocabulary_size: int) -> TokenizerFiles:
    """Read the tokenizer of a model directory.

    Args:
        path: the directory.
        config: its config.json.
        vocabulary_size: rows of the embedding.

    Raises:
        UnsupportedModelError: there is no tokenizer.json.
        SourceFormatError: it is not one, or has tokens that the embedding has no row for.
    """
    if not (path / TOKENIZER_NAME).is_file():
        raise UnsupportedModelError(
            f"{path} has no {TOKENIZER_NAME}",
            hint="transformers writes one: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)",
        )
    settings = _optional_json(path / TOKENIZER_CONFIG_NAME)
    template = _chat_template(path, settings)
    data = read_json(path / TOKENIZER_NAME)
    _add_missing(data, settings)
    special = {
        name: text for name in _SPECIAL_NAMES if (text := _text(settings.get(name))) is not None
    }
    tokenizer = _taken_apart(path, data, vocabulary_size, special, template)
    special = {name: text for name, text in special.items() if text in tokenizer.ids}
    bos_id = tokenizer.ids.get(special.get("bos_token", ""))
    if bos_id is None:
        bos_id = next(iter(_token_ids(config.get("bos_token_id"), vocabulary_size)), None)
    add_bos = bos_id is not None and _adds_bos(settings, data, bos_id, tokenizer.ids)
    generation = _optional_json(path / _GENERATION_NAME)
    named = {
        *_token_ids(config.get("eos_token_id"), vocabulary_size),
        *_token_ids(generation.get("eos_token_id"), vocabulary_size),
        *(tokenizer.ids[text] for text in (special.get("eos_token"),) if text is not None),
    }
    return TokenizerFiles(
        tokenizer_json=json.dumps(data, ensure_ascii=False, separators=(",", ":")),
        tokenizer_config_json=tokenizer_config(special, add_bos=add_bos, template=template),
        chat_template=template,
        special_tokens=special,
        bos_token_id=bos_id,
        add_bos=add_bos,
        end_token_ids=end_token_ids(
            named,
            tokenizer.ids,
            lambda token_id: bool(tokenizer.added.get(token_id, {}).get("special")),
            template,
        ),
    )


def read_generation_defaults(path: Path) -> GenerationDefaults:
    """What the model's makers want when a request is silent.

    Raises:
        SourceFormatError: a number that no sampler takes.
    """
    data = _optional_json(path / _GENERATION_NAME)

    def number(key: str, highest: float, *, whole: bool = False) -> Any:
        value = data.get(key)
        if value is None:
            return None
        plain = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        if not plain or not math.isfinite(value) or not 0 <= value <= highest:
            raise SourceFormatError(f"{path / _GENERATION_NAME}: {key} is {value!r:.40}")
        return value or None  # 0 turns a setting off

    penalty = number("repetition_penalty", 100.0)
    if data.get("do_sample") is not True:
        return GenerationDefaults(repetition_penalty=penalty)
    return GenerationDefaults(
        temperature=number("temperature", 100.0),
        top_p=number("top_p", 1.0),
        top_k=number("top_k", 2**31, whole=True),
        min_p=number("min_p", 1.0),
        repetition_penalty=penalty,
    )


def _optional_json(file: Path) -> dict[str, Any]:
    return read_json(file) if file.is_file() else {}


def _text(value: Any) -> str | None:
    """A token, which is written as its text or as an object that holds it."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _add_missing(data: dict[str, Any], settings: Mapping[str, Any]) -> None:
    """Added tokens that only tokenizer_config.json has."""
    decoder = settings.get("added_tokens_decoder")
    held = data.setdefault("added_tokens", [])
    if not isinstance(decoder, dict) or not isinstance(held, list):
        return
    known = {entry.get("id") for entry in held if isinstance(entry, dict)}
    for key, entry in decoder.items():
        text = _text(entry)
        if not key.isdecimal() or int(key) in known or text is None:
            continue
        flags = {name: bool(entry.get(name)) for name in ("single_word", "lstrip", "rstrip")}
        held.append(
            {
                "id": int(key),
                "content": text,
                **flags,
                "normalized": bool(entry.get("normalized")),
                "special": bool(entry.get("special")),
            }
        )


def _taken_apart(
    path: Path,
    data: dict[str, Any],
    vocabulary_size: int,
    special: Mapping[str, str],
    template: str | None,
) -> _Tokenizer:
    """Check the ids. Added tokens past the embedding that nothing uses are taken out: Gemma 3 has
    one for images in a model that has none."""
    file = path / TOKENIZER_NAME
    model = data.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    added = data["added_tokens"]
    entries_ok = isinstance(added, list) and all(
        isinstance(e, dict) and isinstance(e.get("id"), int) and isinstance(e.get("content"), str)
        for e in added
    )
    if not entries_ok or not isinstance(vocabulary, (dict, list)) or not vocabulary:
        raise SourceFormatError(f"{file} has no vocabulary")
    if isinstance(vocabulary, list):  # Unigram: pieces with their scores, in the order of ids
        pairs = [entry for entry in vocabulary if isinstance(entry, list) and entry]
        ids = {str(entry[0]): token_id for token_id, entry in enumerate(pairs)}
    else:
        ids = vocabulary
    for token, token_id in ids.items():
        if not isinstance(token_id, int) or not 0 <= token_id < vocabulary_size:
            raise _disagrees(file, token, token_id, vocabulary_size)
    for entry in added:
        used = entry["content"] in special.values() or entry["content"] in (template or "")
        if entry["id"] < 0 or (entry["id"] >= vocabulary_size and used):
            raise _disagrees(file, entry["content"], entry["id"], vocabulary_size)
    kept = [entry for entry in added if entry["id"] < vocabulary_size]
    data["added_tokens"] = kept
    return _Tokenizer(
        data,
        {**ids, **{entry["content"]: entry["id"] for entry in kept}},
        {entry["id"]: entry for entry in kept},
    )


def _disagrees(file: Path, token: str, token_id: Any, vocabulary_size: int) -> SourceFormatError:
    return SourceFormatError(
        f"{file}: the token {token!r:.60} has the id {token_id!r:.20}, and the embedding has "
        f"{vocabulary_size} rows",
        hint="the tokenizer belongs to another model, or vocab_size is wrong",
    )


def _token_ids(value: Any, vocabulary_size: int) -> list[int]:
    """One id or several; those that are none are left out."""
    values = value if isinstance(value, list) else [value]
    return [
        v
        for v in values
        if isinstance(v, int) and not isinstance(v, bool) and 0 <= v < vocabulary_size
    ]


def _adds_bos(
    settings: Mapping[str, Any], data: Mapping[str, Any], bos_id: int, ids: Mapping[str, int]
) -> bool:
    """Whether a prompt begins with the token: the settings say, or the post-processor does."""
    asked = settings.get("add_bos_token")
    if isinstance(asked, bool):
        return asked
    for processor in _post_processors(data.get("post_processor")):
        single = processor.get("single")
        if processor.get("type") == "TemplateProcessing" and isinstance(single, list) and single:
            first = single[0].get("SpecialToken") if isinstance(single[0], dict) else None
            return isinstance(first, dict) and ids.get(str(first.get("id"))) == bos_id
    return False


def _post_processors(value: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(value, dict):
        return
    inner = value.get("processors")
    for processor in inner if isinstance(inner, list) else [value]:
        if isinstance(processor, dict):
            yield processor


def _chat_template(path: Path, settings: Mapping[str, Any]) -> str | None:
    """The template: in a file of its own, or in the settings, alone or as the one by default."""
    file = path / CHAT_TEMPLATE_NAME
    if file.is_file():
        if file.stat().st_size > _LARGEST_TEMPLATE:
            raise SourceFormatError(f"{file} is larger than any template")
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError) as exc:
            raise SourceFormatError(f"{file} cannot be read: {exc}") from exc
    value = settings.get("chat_template")
    if value is None:
        value = _optional_json(path / "chat_template.json").get("chat_template")
    if isinstance(value, list):
        named = {e.get("name"): e.get("template") for e in value if isinstance(e, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None
