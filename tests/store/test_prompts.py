from __future__ import annotations

from pathlib import Path

import pytest

from edge_runtime.errors import ModelNotFoundError, UsageError
from edge_runtime.store.home import Home
from edge_runtime.store.prompts import (
    find_prompt,
    list_prompts,
    prompt_file,
    remove_prompt,
    sweep_prompts,
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "store")
    home.prompts.mkdir(parents=True)
    return home


@pytest.mark.parametrize(
    "name", ["", "..", ".hidden", "a/b", "../x", "a b", "x" * 100, "a\0b", "-x"]
)
def test_no_name_becomes_a_path(home: Home, name: str):
    with pytest.raises(UsageError, match="no name for a prompt"):
        prompt_file(home, name)
    with pytest.raises(UsageError):
        remove_prompt(home, name)


def test_a_file_that_exists_wins_over_a_name(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    prompt_file(home, "keeper").write_bytes(b"stored")
    assert find_prompt(home, "keeper") == home.prompts / "keeper.kv"
    Path("keeper").write_bytes(b"mine")
    assert find_prompt(home, "keeper") == Path("keeper")


@pytest.mark.parametrize("text", ["kepeer", "no/such/file", "a\0b", "x" * 5000])
def test_what_is_not_there_is_one_error(home: Home, text: str):
    prompt_file(home, "keeper").touch()
    with pytest.raises(ModelNotFoundError, match="no saved prompt") as caught:
        find_prompt(home, text)
    assert ("keeper" in str(caught.value.hint)) == (text == "kepeer")


def test_prompts_are_listed_and_removed(home: Home):
    for name in ("b", "a"):
        prompt_file(home, name).write_bytes(b"12345")
    (home.prompts / "notes.txt").touch()
    assert [p.stem for p in list_prompts(home)] == ["a", "b"]
    assert remove_prompt(home, "a") == 5
    assert [p.stem for p in list_prompts(home)] == ["b"]
    with pytest.raises(ModelNotFoundError):
        remove_prompt(home, "a")


def test_what_a_killed_save_left_is_swept(home: Home):
    left = home.prompts / ".keeper.kv.abcd_123.part"
    left.write_bytes(b"half")
    prompt_file(home, "keeper").touch()
    assert sweep_prompts(home) == [left]
    assert [p.name for p in home.prompts.iterdir()] == ["keeper.kv"]


def test_a_store_without_prompts_has_none(tmp_path: Path):
    home = Home(tmp_path / "none")
    assert (list_prompts(home), sweep_prompts(home)) == ([], [])
