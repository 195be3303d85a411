from __future__ import annotations

from pathlib import Path

import pytest

from edge_runtime.store.names import split_recipe, store_key


@pytest.mark.parametrize(
    "model, expected",
    [
        ("smollm2:int4", ("smollm2", "int4")),
        ("hf:org/repo:file.gguf:int8", ("hf:org/repo:file.gguf", "int8")),
        ("hf:org/repo:file.gguf", ("hf:org/repo:file.gguf", None)),
        ("smollm2", ("smollm2", None)),
        ("smollm2:int5", ("smollm2:int5", None)),
        (":int4", (":int4", None)),
        (r"C:\models\a.gguf", (r"C:\models\a.gguf", None)),
    ],
)
def test_a_recipe_is_taken_off_only_where_there_is_one(model, expected):
    assert split_recipe(model) == expected


@pytest.mark.parametrize(
    "name, key",
    [
        ("Model.Q4_1.gguf", "Model.Q4_1-01234567"),
        ("../my model:é.gguf", "my-model-01234567"),
        ("...gguf", "model-01234567"),
        ("x" * 300 + ".gguf", "x" * 80 + "-01234567"),
    ],
)
def test_a_key_is_a_safe_file_name(name: str, key: str):
    assert store_key(Path(name), "0123456789abcdef") == key


def test_two_files_of_one_name_have_different_keys():
    assert store_key(Path("a.gguf"), "0" * 64) != store_key(Path("a.gguf"), "1" * 64)
