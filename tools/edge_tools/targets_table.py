"""The table of docs/targets.md: each target, its graph, its providers, and how each was checked.

``python -m edge_tools.targets_table`` writes it into the page. What was done with a provider is said
here, once, and nowhere claimed that was not done. Runs nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from edge_targets.load import all_targets
from edge_targets.profile import TargetProfile

from edge_runtime.providers.catalog import load_providers

BEGIN, END = "<!-- targets: begin -->", "<!-- targets: end -->"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "targets.md"

# Provider -> how it was checked. Without an entry: never run; its graph ran on the CPU provider.
CHECKED = {
    "openvino": "run on a CPU",
    "webgpu": "plugin registered, no device to run on",
    "coreml": "not run; static graphs' nodes counted by onnxruntime's mobile checker",
    "nnapi": "not run; static graphs' nodes counted by onnxruntime's mobile checker",
}
_NOT_RUN = "not run"
_OTHER_CPU = "not run on this device"
# Targets whose CPU provider was run on a device of the kind.
_RAN = {"x86-laptop", "x86-server-small", "rtx-laptop"}
_BROWSER = "run in Node (WebAssembly)"


def table() -> str:
    """The table, in Markdown."""
    lines = [
        "| target | device | graph | providers, and how each was checked |",
        "|---|---|---|---|",
    ]
    for name, target in all_targets().items():
        shown = "<br>".join(_provider(name, choice.name) for choice in target.providers)
        lines.append(f"| `{name}` | {target.title} | {_graph(target)} | {shown} |")
    return "\n".join(lines)


def page_with_table(text: str) -> str:
    """The page with its table made anew.

    Raises:
        ValueError: it has no place for one.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def _graph(target: TargetProfile) -> str:
    fixed = f", fixed at {target.chunk} and 1 x {target.capacity}" if target.static_shapes else ""
    return f"{target.dialect} {target.precision}{fixed}"


def _provider(target: str, name: str) -> str:
    short = load_providers().find(name).short_name
    checked = CHECKED.get(short, _NOT_RUN)
    if short == "cpu":
        checked = "run on x86-64 Linux" if target in _RAN else _OTHER_CPU
        if target == "browser":
            checked = _BROWSER
    return f"{short}: {checked}"


def main(argv: Sequence[str]) -> int:
    """Rewrite the page; with ``--check`` only say whether it is up to date."""
    text = PAGE.read_text(encoding="utf-8")
    made = page_with_table(text)
    if "--check" in argv:
        return int(made != text)
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
