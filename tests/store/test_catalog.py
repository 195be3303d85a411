from __future__ import annotations

import re

import pytest

from edge_runtime.bundle import is_safe_relative_path
from edge_runtime.near_names import near_names
from edge_runtime.store.catalog import load_catalog
from edge_runtime.store.names import RECIPES


def test_every_entry_is_complete_and_pinned():
    for entry in load_catalog().models:
        assert re.fullmatch(r"[0-9a-f]{64}", entry.sha256)
        assert entry.size_bytes > 0 and entry.license and entry.description
        assert is_safe_relative_path(entry.file) and "/" not in entry.file
        assert entry.sources
        for source in entry.sources:
            assert (source.hub is None) != (source.wheel is None)
            if source.hub is not None:
                assert re.fullmatch(r"[0-9a-f]{40}", source.hub.revision), "a branch can move"
            if source.wheel is not None:
                assert "==" in source.wheel.requirement


def test_names_are_unique_lower_case_and_no_recipe():
    names = load_catalog().names
    assert len(set(names)) == len(names)
    for name in names:
        assert re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name)
        assert name not in RECIPES


@pytest.mark.parametrize("name", ["smollm2-135m", "smollm2", "SmolLM2-135M"])
def test_a_name_an_alias_and_any_case_find_the_entry(name: str):
    entry = load_catalog().find(name)
    assert entry is not None and entry.name == "smollm2-135m"


def test_an_unknown_name_finds_nothing():
    assert load_catalog().find("gpt-5") is None


@pytest.mark.parametrize(
    "name, expected",
    [
        ("smolm2", ["smollm2"]),
        ("SMOLLM2-135", ["smollm2-135m", "smollm2"]),
        ("smo", ["smollm2", "smollm2-135m"]),
        ("llama", []),
    ],
)
def test_near_names_are_those_likely_meant(name: str, expected: list[str]):
    assert near_names(name, load_catalog().names)[: len(expected)] == expected
    if not expected:
        assert near_names(name, load_catalog().names) == []
