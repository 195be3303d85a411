"""The table of docs/architectures.md: families by what tests hold them to.

    PYTHONPATH=tests python -m support.architecture_table --write

A cell says yes where a test of that name runs on a case of the family.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from edge_export.architectures.registry import FAMILIES
from support.golden import CASES, GOLDEN, WINDOWED, reference
from support.golden_gguf import GGUF_CASES

PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"
START, END = "<!-- table -->\n", "<!-- end of table -->\n"
COLUMNS = (
    "family", "safetensors", "GGUF", "prefill, chunks, batch", "64 greedy tokens",
    "past the window", "rotary scaling past its context", "int8", "int4",
)  # fmt: skip


def table() -> str:
    """The rows, as the page has them."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    lines += ["| " + " | ".join(_row(f.model_types)) + " |" for f in FAMILIES]
    return "\n".join(lines) + "\n"


def _row(model_types: tuple[str, ...]) -> list[str]:
    configs = {c: json.loads((GOLDEN / c / "config.json").read_text()) for c in CASES}
    cases = [c for c in CASES if configs[c]["model_type"] in model_types]
    kinds = {_rotary_kind(configs[c]) for c in cases} - {"default"}
    cells = [
        bool(cases),
        any(c in GGUF_CASES for c in cases),
        bool(cases),
        any(len(reference(c).greedy) == 64 for c in cases),
        any(c in WINDOWED for c in cases),
        ", ".join(sorted(kinds)),
        bool(cases),
        bool(cases),
    ]
    return [
        ", ".join(model_types),
        *(cell if isinstance(cell, str) and cell else "yes" if cell else "-" for cell in cells),
    ]


def _rotary_kind(config: dict[str, object]) -> str:
    rope = config["rope_parameters"]
    assert isinstance(rope, dict)
    return str(rope.get("full_attention", rope)["rope_type"])


def page_with(rows: str) -> str:
    """The page with these rows in place of its own."""
    before, rest = PAGE.read_text(encoding="utf-8").split(START)
    return before + START + rows + END + rest.split(END)[1]


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page_with(table()), encoding="utf-8")
    print(table())
