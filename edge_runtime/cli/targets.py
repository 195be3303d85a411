"""List the devices that models can be exported for and run as."""

from __future__ import annotations

import argparse
import json

from edge_runtime.cli.tables import table
from edge_runtime.typed_data import encode


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--json", action="store_true", help="print every field as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the table, or the JSON; this machine's own target is marked."""
    from edge_targets.load import all_targets

    from edge_runtime.cli.device import chosen_target
    from edge_runtime.errors import UnknownTargetError
    from edge_runtime.providers.catalog import load_providers
    from edge_runtime.providers.facts import Facts

    try:
        own = chosen_target("auto", Facts().machine())[0]
    except UnknownTargetError:
        own = None
    targets = all_targets()
    if arguments.json:
        plain = [{"name": n, "this_machine": n == own} | encode(t) for n, t in targets.items()]
        print(json.dumps(plain, indent=2, ensure_ascii=False))
        return 0
    catalog = load_providers()
    rows = [
        [
            f"{name} *" if name == own else name,
            target.title,
            ", ".join(catalog.find(choice.name).short_name for choice in target.providers),
            f"{target.dialect} {target.precision}" + (", static" if target.static_shapes else ""),
            target.recipe,
            str(target.chunk),
            str(target.slots),
            "-" if target.memory_share is None else f"{target.memory_share:.0%}",
        ]
        for name, target in targets.items()
    ]
    header = ["TARGET", "DEVICE", "PROVIDERS", "GRAPH", "RECIPE", "CHUNK", "SLOTS", "MEMORY"]
    print(table(header, rows, right="CHUNK SLOTS MEMORY"))
    if own:
        print("\n* this machine (--target auto)")
    return 0
