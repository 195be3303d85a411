"""Hugging Face directories as a source: what is read, and what is refused in one line."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edge_export.architectures.registry import read_spec
from edge_export.pipeline import ExportOptions, export_model
from edge_export.sources.hugging_face import open_hugging_face
from edge_export.sources.hugging_face_tokenizer import read_generation_defaults, read_tokenizer
from edge_export.sources.safetensors import open_safetensors
from support.golden import write_checkpoint

from edge_runtime.bundle import GenerationDefaults
from edge_runtime.errors import EdgeRuntimeError, SourceFormatError, UnsupportedModelError


def write_safetensors(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
    """By the specification, not by the reader under test."""
    header, data = {}, b""
    for name, (kind, shape, content) in tensors.items():
        extent = [len(data), len(data) + len(content)]
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": extent}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def change_json(file: Path, **changes: Any) -> None:
    data = json.loads(file.read_text()) if file.exists() else {}
    data.update(changes)
    file.write_text(json.dumps({k: v for k, v in data.items() if v is not None}))


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return write_checkpoint("llama", tmp_path)


def refused(directory: Path, tmp_path: Path) -> EdgeRuntimeError:
    """The error of an export, which left nothing behind."""
    with pytest.raises(EdgeRuntimeError) as caught:
        export_model(directory, tmp_path / "out" / "bundle")
    assert "\n" not in caught.value.message and len(caught.value.message) < 500
    assert not list((tmp_path / "out").glob("*")) if (tmp_path / "out").exists() else True
    return caught.value


# Tensors


def test_each_float_kind_is_read_for_what_it_means(tmp_path: Path) -> None:
    values = np.array([[1.5, -2.0, 0.0078125], [3e8, 1e-8, -0.0]], np.float32)
    bf16 = (values.view(np.uint32) >> 16).astype("<u2")
    write_safetensors(
        tmp_path / "m.safetensors",
        {
            "f32": ("F32", [2, 3], values.astype("<f4").tobytes()),
            "f16": ("F16", [2, 3], np.clip(values, -6e4, 6e4).astype("<f2").tobytes()),
            "bf16": ("BF16", [2, 3], bf16.tobytes()),
            "i8": ("I8", [6], b"123456"),
        },
    )
    opened = open_safetensors(tmp_path / "m.safetensors")
    t = opened.tensors
    np.testing.assert_array_equal(t["f32"].array(), values)
    np.testing.assert_array_equal(
        t["f16"].array(), np.clip(values, -6e4, 6e4).astype("<f2").astype(np.float32)
    )
    widened = (bf16.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(t["bf16"].array(), widened)
    np.testing.assert_array_equal(t["bf16"].rows(1, 2), widened[1:])
    with pytest.raises(UnsupportedModelError, match="stored as I8"):
        t["i8"].array()
    opened.close()


Entry = dict[str, Any]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda e: e.update(data_offsets=[0, 10]), "takes 10 bytes, and its shape 16"),
        (lambda e: e.update(data_offsets=[4, 20]), "truncated"),
        (lambda e: e.update(data_offsets=[-1, 15]), "no shape and place"),
        (lambda e: e.update(shape=[2, -2]), "no shape and place"),
        (lambda e: e.update(shape=[2**60, 2**60]), "no shape and place"),
        (lambda e: e.update(dtype="Q4"), "'Q4', which is not known"),
        (lambda e: e.clear(), "no shape and place"),
    ],
)
def test_a_header_that_contradicts_the_file_is_refused(
    spoil: Callable[[Entry], None], message: str, tmp_path: Path
) -> None:
    entry: Entry = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    spoil(entry)
    text = json.dumps({"w": entry}).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(16))
    with pytest.raises((SourceFormatError, UnsupportedModelError), match=message):
        open_safetensors(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 7,
        b"\xff" * 64,
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 4) + b"{{{{",
        struct.pack("<Q", 200_000) + b"[" * 200_000,
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n",
    ],
)
def test_what_is_no_safetensors_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(content)
    with pytest.raises(SourceFormatError):
        open_safetensors(tmp_path / "m.safetensors")


# Directories


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    directory = write_checkpoint("qwen2", tmp_path)
    (directory / "model-00002-of-00003.safetensors").unlink()
    error = refused(directory, tmp_path)
    assert "model-00002-of-00003.safetensors of 3 is missing" in error.message


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "a/../../b.safetensors"])
def test_an_index_that_leaves_the_directory_is_refused(name: str, tmp_path: Path) -> None:
    directory = write_checkpoint("qwen2", tmp_path)
    index = {"weight_map": {"model.embed_tokens.weight": name}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "is no safetensors file of the model" in refused(directory, tmp_path).message


def test_a_tensor_of_the_wrong_shape_is_named_with_both(llama: Path, tmp_path: Path) -> None:
    change_json(llama / "config.json", intermediate_size=128)
    message = refused(llama, tmp_path).message
    assert "layers.0.mlp.gate_proj.weight has shape (96, 64), expected (128, 64)" in message


def test_pickles_are_refused_unopened_with_the_way_to_safetensors(
    llama: Path, tmp_path: Path
) -> None:
    (llama / "model.safetensors").unlink()
    (llama / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n")
    error = refused(llama, tmp_path)
    assert "pytorch_model.bin is a pickle" in error.message and "safetensors" in (error.hint or "")


def test_an_unknown_model_type_lists_what_is_supported(llama: Path, tmp_path: Path) -> None:
    change_json(llama / "config.json", model_type="perceptron")
    error = refused(llama, tmp_path)
    assert "'perceptron' is not supported" in error.message
    assert "llama" in (error.hint or "") and "gemma3" in (error.hint or "")


def test_code_of_a_repository_is_never_executed(llama: Path, tmp_path: Path) -> None:
    witness = tmp_path / "executed"
    (llama / "modeling_evil.py").write_text(f"open({str(witness)!r}, 'w')")
    auto_map = {"AutoModelForCausalLM": "modeling_evil.Evil", "AutoConfig": "modeling_evil.C"}
    change_json(llama / "config.json", auto_map=auto_map)
    export_model(llama, tmp_path / "known")  # the family is known: its code is not needed
    change_json(llama / "config.json", model_type="evil")
    assert "never executed" in refused(llama, tmp_path).message
    assert not witness.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": 3}, "there should be 3 layers"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers should be a whole number"),
        ({"num_attention_heads": 5, "head_dim": None}, "5 heads do not share 64"),
        ({"num_key_value_heads": 3}, "4 heads do not share 3 kv heads"),
        ({"hidden_size": -64}, "hidden_size should be a whole number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"max_position_embeddings": 2**30}, "longer than any model's"),
        ({"hidden_act": "relu6"}, "'relu6' is not supported"),
        ({"model_type": None}, "no model_type"),
        ({"rope_parameters": [1]}, "rope_parameters should be an object"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "'spiral' is not known"),
        ({"rope_parameters": {"rope_type": "linear"}}, "no factor"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized already, with 'gptq'"),
    ],
)
def test_a_configuration_of_nonsense_is_one_line(
    changes: dict[str, Any], message: str, llama: Path, tmp_path: Path
) -> None:
    change_json(llama / "config.json", **changes)
    assert message in refused(llama, tmp_path).message


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000, "null", "\udcff"])
def test_a_config_that_is_no_object_is_one_line(content: str, llama: Path, tmp_path: Path) -> None:
    (llama / "config.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    assert "config.json" in refused(llama, tmp_path).message


def test_old_and_new_spellings_of_rotary_scaling_mean_the_same(llama: Path) -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 32
    new = {"rope_type": "llama3", "rope_theta": 500000.0, **scaling}
    change_json(llama / "config.json", rope_parameters=new)
    with open_hugging_face(llama) as checkpoint:
        expected = read_spec(checkpoint).rotary
    old = {"type": "llama3", **scaling}
    change_json(llama / "config.json", rope_parameters=None, rope_scaling=old, rope_theta=500000.0)
    with open_hugging_face(llama) as checkpoint:
        found = read_spec(checkpoint).rotary
    np.testing.assert_array_equal(found.inverse_frequencies, expected.inverse_frequencies)


def test_a_context_that_the_model_does_not_reach_is_refused(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"300 tokens was asked for.* reaches 256"):
        export_model(llama, tmp_path / "bundle", ExportOptions(context_length=300))
    manifest = export_model(llama, tmp_path / "bundle", ExportOptions(context_length=100)).manifest
    assert manifest.dimensions.context_length == 100


# Tokenizer and defaults


def test_end_tokens_are_the_union_of_all_that_name_one(llama: Path) -> None:
    change_json(llama / "config.json", eos_token_id=3)
    change_json(llama / "generation_config.json", eos_token_id=[5, 7, 9999])
    config = json.loads((llama / "config.json").read_text())
    files = read_tokenizer(llama, config, 272)
    assert files.end_token_ids == (3, 5, 7, 258)  # 258 is <|im_end|>, by its name
    assert files.bos_token_id == 256 and not files.add_bos


def test_a_begin_token_of_the_post_processor_is_added(llama: Path) -> None:
    single = [{"SpecialToken": {"id": "<|begin|>", "type_id": 0}}]
    change_json(
        llama / "tokenizer.json",
        post_processor={
            "type": "Sequence",
            "processors": [{"type": "TemplateProcessing", "single": single}],
        },
    )
    assert read_tokenizer(llama, {}, 272).add_bos
    change_json(llama / "tokenizer_config.json", add_bos_token=False)
    assert not read_tokenizer(llama, {}, 272).add_bos


@pytest.mark.parametrize("where", ["file", "settings", "list", "processor"])
def test_a_chat_template_is_found_wherever_it_is_written(where: str, llama: Path) -> None:
    text = "{{ messages }}"
    if where == "file":
        (llama / "chat_template.jinja").write_text(text)
    elif where == "settings":
        change_json(llama / "tokenizer_config.json", chat_template=text)
    elif where == "list":
        named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": text}]
        change_json(llama / "tokenizer_config.json", chat_template=named)
    else:
        change_json(llama / "chat_template.json", chat_template=text)
    assert read_tokenizer(llama, {}, 272).chat_template == text


def test_a_tokenizer_of_more_tokens_than_rows_is_refused(llama: Path, tmp_path: Path) -> None:
    vocabulary = json.loads((llama / "tokenizer.json").read_text())
    vocabulary["model"]["vocab"]["far"] = 272
    (llama / "tokenizer.json").write_text(json.dumps(vocabulary))
    message = refused(llama, tmp_path).message
    assert "'far' has the id 272, and the embedding has 272 rows" in message


def test_an_added_token_past_the_rows_goes_unless_something_uses_it(llama: Path) -> None:
    extra = {"272": {"content": "<image>", "special": True}}
    change_json(llama / "tokenizer_config.json", added_tokens_decoder=extra)
    assert "<image>" not in read_tokenizer(llama, {}, 272).tokenizer_json
    assert "<image>" in read_tokenizer(llama, {}, 273).tokenizer_json
    change_json(llama / "tokenizer_config.json", eos_token="<image>")
    with pytest.raises(SourceFormatError, match="<image>"):
        read_tokenizer(llama, {}, 272)


def test_sentencepiece_alone_is_refused_with_the_way_to_tokenizer_json(
    llama: Path, tmp_path: Path
) -> None:
    (llama / "tokenizer.json").rename(llama / "tokenizer.model")
    error = refused(llama, tmp_path)
    assert "no tokenizer.json" in error.message and "save_pretrained" in (error.hint or "")


def test_sampling_defaults_are_taken_where_sampling_is_on(llama: Path) -> None:
    settings = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.1}
    change_json(llama / "generation_config.json", do_sample=True, **settings)
    assert read_generation_defaults(llama) == GenerationDefaults(0.6, 0.95, 20, None, 1.1)
    change_json(llama / "generation_config.json", do_sample=False)
    assert read_generation_defaults(llama) == GenerationDefaults(repetition_penalty=1.1)
    change_json(llama / "generation_config.json", do_sample=True, top_p=7)
    with pytest.raises(SourceFormatError, match="top_p is 7"):
        read_generation_defaults(llama)


def test_the_manifest_says_where_a_directory_came_from(llama: Path, tmp_path: Path) -> None:
    (llama / "README.md").write_text("---\nlicense: apache-2.0\n---\n# A model\n")
    manifest = export_model(llama, tmp_path / "bundle").manifest
    assert (manifest.source.format, manifest.source.file) == ("safetensors", "llama")
    assert manifest.name == "llama" and manifest.license == "apache-2.0"
    again = export_model(llama, tmp_path / "again").manifest
    assert again.source.sha256 == manifest.source.sha256
    change_json(llama / "config.json", rms_norm_eps=1e-6)
    assert export_model(llama, tmp_path / "other").manifest.source.sha256 != again.source.sha256
