"""docs/architectures.md says what the tests hold each family to, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from edge_export.architectures import granite
from edge_export.architectures.registry import FAMILIES

pytest.importorskip("onnxruntime")

from support.architecture_table import PAGE, page_with, table


def test_the_page_has_the_table_that_the_tests_make() -> None:
    assert PAGE.read_text(encoding="utf-8") == page_with(table()), (
        "renew it: PYTHONPATH=tests python -m support.architecture_table --write"
    )


def test_every_family_has_a_case_and_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for family in FAMILIES:
        assert any(name in page for name in family.model_types)
    rows = table().splitlines()[2:]
    assert all(row.split(" | ")[1] == "yes" for row in rows), rows


def test_the_guide_shows_the_family_file_as_it_is() -> None:
    guide = (PAGE.parent / "adding-an-architecture.md").read_text(encoding="utf-8")
    shown = guide.split("<!-- granite -->\n")[1].split("<!-- end of granite -->")[0]
    code = Path(granite.__file__).read_text(encoding="utf-8")
    assert shown == f"```python\n{code}```\n"
