"""Turn texts into vectors with an embedding model."""

from __future__ import annotations

import argparse
import json
import sys

from edge_runtime.cli.session import add_model_argument, found_bundle
from edge_runtime.cli.standard_input import read_piped_text, require_valid_unicode
from edge_runtime.errors import EmptyPromptError
from edge_runtime.file_hash import RememberedHashes
from edge_runtime.store.home import Home
from edge_runtime.store.names import RECIPES


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_model_argument(parser)
    parser.add_argument(
        "texts",
        metavar="TEXT",
        nargs="*",
        default=[],
        help="what to embed; without any, the lines of standard input",
    )
    parser.add_argument(
        "--truncate", action="store_true", help="take the beginning of a text that is too long"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="default: what the CPU gives")
    parser.add_argument("--quant", choices=RECIPES, help="the recipe of the export on first use")
    parser.add_argument("--verbose", action="store_true", help="tokens and padding on stderr")


def run(arguments: argparse.Namespace) -> int:
    """Print a JSON array a text, one a line, in the order of the texts."""
    texts = arguments.texts or [line for line in read_piped_text().splitlines() if line.strip()]
    for text in texts:
        require_valid_unicode(text, "a text")
    if not texts:
        raise EmptyPromptError(
            "there is no text", hint='edge-runtime embed MODEL "some text", or pipe lines in'
        )
    bundle = found_bundle(arguments)
    from edge_runtime.embedding.embedder import Embedder

    hashes = RememberedHashes(Home.find().hashes)
    with Embedder.load(bundle, threads=arguments.threads, hash_file=hashes) as embedder:
        made = embedder.embed(texts, truncate=arguments.truncate)
    for vector in made.vectors:
        # Nine digits hold a float32 exactly.
        print(json.dumps([float(f"{value:.9g}") for value in vector.tolist()]))
    if arguments.verbose:
        print(f"{made.tokens} tokens, {made.padding_tokens} of padding", file=sys.stderr)
    return 0
