"""docs/targets.md says what the profiles say."""

from __future__ import annotations

import pytest
from edge_targets.load import all_targets
from edge_tools.targets_table import PAGE, main, page_with_table, table


def test_the_pages_table_is_the_profiles_own() -> None:
    assert main(["--check"]) == 0, "python -m edge_tools.targets_table"


def test_every_target_has_a_row_with_each_of_its_providers() -> None:
    rows = {line.split("`")[1]: line for line in table().splitlines()[2:]}
    assert set(rows) == set(all_targets())
    for name, target in all_targets().items():
        assert rows[name].count("<br>") == len(target.providers) - 1
    assert "tensorrt: not run" in rows["jetson-orin-nano"]
    assert "fixed at 64 and 1 x 1024" in rows["windows-qnn"]


def test_what_stands_around_the_table_is_kept() -> None:
    text = PAGE.read_text(encoding="utf-8")
    made = page_with_table(text)
    assert made.splitlines()[0] == text.splitlines()[0]
    assert made.rstrip().splitlines()[-1] == text.rstrip().splitlines()[-1]
    with pytest.raises(ValueError, match="lacks"):
        page_with_table("# no place")
