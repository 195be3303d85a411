"""A comparison's JSON as a table for a terminal, as the README's table, and as a picture.

    python -m edge_tools.comparison_report comparison.json [--readme README.md] [--plot FILE.png]

The README's part stands between two marker comments and is replaced whole, so that its figures are
those that were measured. Knows nothing of measuring.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_runtime.errors import UsageError
from edge_tools.command import run
from edge_tools.contest import SMALLER_IS_BETTER

if TYPE_CHECKING:
    from rich.table import Table

BEGIN, END = "<!-- comparison: begin -->", "<!-- comparison: end -->"
# Figure, its name for people, decimals.
ROWS = (
    ("prefill_512", "prefill of 512, tokens/s", 0),
    ("prefill_2048", "prefill of 2,048, tokens/s", 0),
    ("decode_0", "decode with nothing held, tokens/s", 1),
    ("decode_512", "decode with 512 held, tokens/s", 1),
    ("decode_1500", "decode with 1,500 held, tokens/s", 1),
    ("four_streams", "four streams together, tokens/s", 1),
    ("ttft_ms", "first token of 128 read, ms", 0),
    ("ttft_cached_ms", "first token, 1,000 of 1,024 cached, ms", 0),
    ("first_token_s", "process start to first token, s", 2),
    ("peak_rss_mb", "peak memory of a 300-token exchange, MiB", 0),
    ("peak_anonymous_mb", "of it anonymous, MiB", 0),
    ("weights_mb", "weights, MB", 0),
    ("kl", "KL to the file's own weights, nats a token", 4),
    ("top_1", "same top token, share", 3),
)


def cells(comparison: Mapping[str, Any]) -> list[list[str]]:
    """The table's rows: a figure's name, and each contestant's value, the best in bold marks."""
    results = comparison["results"]
    rows = []
    for name, title, decimals in ROWS:
        values = [result["figures"].get(name) for result in results]
        known = [value for value in values if value is not None]
        if not known:
            continue
        smaller = name in SMALLER_IS_BETTER or name == "kl"
        best = min(known) if smaller else max(known)
        texts = ["-" if v is None else f"{v:,.{decimals}f}" for v in values]
        rows.append(
            [title, *(f"**{t}**" if v == best else t for t, v in zip(texts, values, strict=True))]
        )
    return rows


def table(comparison: Mapping[str, Any]) -> Table:
    """The table for a terminal."""
    from rich.table import Table

    labels = [result["label"] for result in comparison["results"]]
    made = Table("figure", *labels, title=comparison["model"], caption=_machine(comparison))
    for title, *values in cells(comparison):
        made.add_row(title, *(_rich(value) for value in values))
    return made


def markdown(comparison: Mapping[str, Any]) -> str:
    """The table for the README, with the machine named."""
    labels = [f"{result['label']}" for result in comparison["results"]]
    lines = [
        f"| {comparison['model']} | " + " | ".join(labels) + " |",
        "|---|" + "---|" * len(labels),
        *("| " + " | ".join(row) + " |" for row in cells(comparison)),
        "",
        _machine(comparison),
    ]
    return "\n".join(lines)


def write_readme(readme: Path, comparison: Mapping[str, Any]) -> None:
    """Replace what stands between the markers.

    Raises:
        UsageError: the file has no such markers.
    """
    text = readme.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UsageError(f"{readme} has no place for the table", hint=f"write {BEGIN} and {END}")
    made = f"{before}{begin}\n{markdown(comparison)}\n{end}{after}"
    readme.write_text(made, encoding="utf-8")


def plot(comparison: Mapping[str, Any], destination: Path) -> None:
    """A picture: a panel a figure, a bar a contestant, ours in the first colours.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ModuleNotFoundError as exc:
        raise UsageError(
            "a picture needs matplotlib", hint="pip install 'edge-runtime[plot]'"
        ) from exc
    matplotlib.use("Agg")
    from matplotlib import pyplot

    results = comparison["results"]
    labels = [result["label"] for result in results]
    colours = ["#1b7f5c" if label.startswith("edge-runtime") else "#9aa5b1" for label in labels]
    rows = [row for row in ROWS if any(r["figures"].get(row[0]) is not None for r in results)]
    columns = 3
    height = -(-len(rows) // columns)
    figure, axes = pyplot.subplots(
        height, columns, figsize=(14, 0.9 + height * (0.9 + 0.28 * len(labels))), squeeze=False
    )
    for axis, (name, title, decimals) in zip(axes.flat, rows, strict=False):
        values = [result["figures"].get(name) for result in results]
        bars = axis.barh(range(len(labels)), [value or 0 for value in values], color=colours)
        texts = ["no figure" if v is None else f"{v:,.{decimals}f}" for v in values]
        axis.bar_label(bars, texts, padding=3, fontsize=8)
        smaller = name in SMALLER_IS_BETTER or name == "kl"
        better = "less is better" if smaller else "more is better"
        axis.set_title(f"{title}\n({better})", fontsize=9, loc="left")
        axis.set_yticks(range(len(labels)), labels, fontsize=8)
        axis.invert_yaxis()
        axis.margins(x=0.18)
        axis.set_xticks([])
        for side in ("top", "right", "bottom"):
            axis.spines[side].set_visible(False)
    for axis in list(axes.flat)[len(rows) :]:
        axis.set_visible(False)
    figure.suptitle(f"{comparison['model']}: {_machine(comparison)}", fontsize=10)
    figure.tight_layout()
    figure.savefig(destination, dpi=110)
    pyplot.close(figure)


def main() -> None:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m edge_tools.comparison_report",
        description=(__doc__ or "").split("\n\n", 1)[0],
    )
    made.add_argument("comparison", type=Path, help="the JSON of edge_tools.compare")
    made.add_argument("--readme", type=Path, help="replace the table between its markers")
    made.add_argument("--plot", type=Path, help="write a picture")
    asked = made.parse_args()
    try:
        comparison = json.loads(asked.comparison.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise UsageError(f"{asked.comparison} cannot be read: {exc}") from exc
    if asked.plot:
        plot(comparison, asked.plot)
    if asked.readme:
        write_readme(asked.readme, comparison)
    if not asked.plot and not asked.readme:
        print(markdown(comparison))


def _machine(comparison: Mapping[str, Any]) -> str:
    machine = comparison["machine"]
    versions = {
        f"{result['label'].split(',')[0].split()[0]} {result['version']}"
        for result in comparison["results"]
    }
    return (
        f"{machine['cpu']}, {comparison['threads']} threads, {machine['onnxruntime']}; "
        f"medians of {comparison['rounds']} alternating rounds; " + ", ".join(sorted(versions))
    )


def _rich(value: str) -> str:
    return f"[bold]{value.strip('*')}[/bold]" if value.startswith("**") else value


if __name__ == "__main__":
    run(main)
