"""Turn a .gguf file or a model directory into a bundle, in the local store or in a directory of yours."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from edge_runtime.bundle import Manifest, read_manifest
from edge_runtime.cli.export_wishes import export_wishes
from edge_runtime.cli.manifest_view import quantization_table
from edge_runtime.cli.reporting import Reporter
from edge_runtime.cli.standard_input import require_valid_unicode
from edge_runtime.cli.tables import pairs
from edge_runtime.errors import UsageError
from edge_runtime.store.home import Home
from edge_runtime.store.names import DEFAULT_RECIPE, RECIPES
from edge_runtime.store.progress import Report
from edge_runtime.store.resolve import (
    BundleDirectory,
    StoredName,
    export_file,
    export_into_store,
    resolve,
    verify_export,
)
from edge_runtime.typed_data import encode

if TYPE_CHECKING:
    from edge_export.parity import ParityReport


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="a .gguf file, a Hugging Face directory (safetensors), or a name that was pulled",
    )
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=Path, help="the bundle's directory (default: store)"
    )
    parser.add_argument(
        "--quant",
        choices=RECIPES,
        help="auto keeps what can be kept exactly and makes the rest 8-bit (the default)",
    )
    parser.add_argument(
        "--target",
        metavar="NAME",
        action="append",
        default=[],
        help="add the graphs that this device wants, in its recipe (edge-runtime targets; "
        "may be repeated; auto is this machine)",
    )
    parser.add_argument(
        "--context",
        type=int,
        metavar="TOKENS",
        help="tokens that the bundle reaches (default: the model's own; with longrope and dynamic "
        "scaling the original context); needs -o",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="compare its predictions with the source's own weights in float32",
    )
    parser.add_argument("--name", help="the bundle's name (default: the source's)")
    parser.add_argument("--force", action="store_true", help="replace a bundle that is there")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Export; the report of what each group of tensors became goes to stdout."""
    with Reporter() as report:
        source, path = _export(arguments, report)
        parity = verify_export(path, source, report) if arguments.verify else None
    manifest = read_manifest(path)
    if arguments.json:
        print(_as_json(path, manifest, parity))
        return 0
    graphs = _graph_lines(manifest)
    parts = [
        quantization_table(manifest),
        *([graphs] if graphs else []),
        *([_parity(parity)] if parity else []),
        str(path),
    ]
    print("\n\n".join(parts))
    return 0


def _export(arguments: argparse.Namespace, report: Report) -> tuple[Path, Path]:
    """The source, and the bundle made of it."""
    require_valid_unicode(arguments.name or "", "--name")
    home = Home.find()
    found = resolve(arguments.source, home=home)
    if isinstance(found, BundleDirectory):
        raise UsageError(
            f"{arguments.source} is a bundle already", hint="give what it was made from"
        )
    source = found.source if isinstance(found, StoredName) else found.path
    if source is None:
        raise UsageError(
            f"the file that {arguments.source} was made from is not in the store",
            hint="give the file or the directory itself",
        )
    if arguments.quant and found.recipe and arguments.quant != found.recipe:
        raise UsageError(f"{arguments.source!r} and --quant {arguments.quant} disagree")
    wanted = export_wishes(arguments.target)
    recipe = arguments.quant or found.recipe or wanted.recipe or DEFAULT_RECIPE
    known = found if isinstance(found, StoredName) else None
    name = arguments.name or (known.name if known else None)
    if arguments.context is not None and arguments.context < 1:
        raise UsageError(f"--context is {arguments.context}")
    if arguments.output is not None:
        output = Path(arguments.output)
        export_file(
            source,
            output,
            recipe,
            report,
            name=name,
            context_length=arguments.context,
            overwrite=arguments.force,
            portable=wanted.portable,
        )
        return source, output
    if arguments.context is not None:
        raise UsageError(
            "the store keeps one bundle of a recipe, with the model's own context",
            hint="give --context together with -o DIR",
        )
    return source, export_into_store(
        source,
        recipe,
        report,
        home=home,
        name=name,
        sha256=known.sha256 if known else None,
        # A bundle that is there may lack the graphs that are asked for now.
        overwrite=arguments.force or bool(wanted.portable),
        portable=wanted.portable,
    )


def _graph_lines(manifest: Manifest) -> str:
    """Graphs beside the fused one, for whom they are and what phones would take of them."""
    lines = []
    for graph in (g for g in manifest.graphs if g.dialect != "fused"):
        lines.append(
            f"{graph.file}: {graph.dialect} {graph.precision}, {', '.join(graph.providers)}"
        )
        lines += [f"  {told}" for told in graph.usability]
    return "\n".join(lines)


def _parity(parity: ParityReport) -> str:
    """The report in a few lines."""
    ties = f"{parity.near_ties} near ties left out: {parity.clear_agreement:.1%}"
    return f"parity with the source in float32, over {parity.tokens} tokens\n" + pairs(
        [
            ("same likeliest token", f"{parity.argmax_agreement:.1%} ({ties})"),
            ("KL divergence", f"{parity.kl:.4f} nats a token"),
            ("cosine of logits", f"{parity.cosine:.6f}"),
            ("largest difference", f"{parity.max_difference:.2e} of the largest logit"),
        ]
    )


def _as_json(path: Path, manifest: Manifest, parity: ParityReport | None) -> str:
    plain = {
        "path": str(path),
        "name": manifest.name,
        "quantization": encode(manifest.quantization),
        "graphs": encode(manifest.graphs),
        "size_bytes": sum(entry.size_bytes for entry in manifest.files.values()),
        **({} if parity is None else {"parity": encode(parity)}),
    }
    return json.dumps(plain, indent=2, ensure_ascii=False)
