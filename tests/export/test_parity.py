"""Every family against what transformers computes of the same weights: see tests/golden.

In float32 the logits are the reference's, read at once, in chunks, token by token and in a batch,
past windows and past the context that rotary scaling starts from; and so are the greedy tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from edge_export.pipeline import ExportOptions, export_model
from edge_export.quantize.recipes import Recipe
from support.golden import (
    CASES,
    EXACT_WINDOWS,
    WINDOWED,
    ExportedGraph,
    reference,
    relative_difference,
    write_checkpoint,
)

pytest.importorskip("onnxruntime")

TOLERANCE = 1e-3


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    if request.param in WINDOWED and not EXACT_WINDOWS:
        pytest.skip("this onnxruntime's windows are one token longer")
    return str(request.param)


@pytest.fixture(scope="module")
def graph(case: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExportedGraph]:
    folder = tmp_path_factory.mktemp("golden")
    options = ExportOptions(quant="f32", context_length=reference(case).context_length)
    bundle = export_model(write_checkpoint(case, folder), folder / "bundle", options).bundle_path
    with closing(ExportedGraph(bundle, slots=3)) as opened:
        yield opened


def test_a_prompt_read_at_once_gives_the_references_logits(case: str, graph: ExportedGraph) -> None:
    expected = reference(case)
    (logits,) = graph.run([expected.prompt], held=[0])
    assert relative_difference(logits, expected.logits) < TOLERANCE


def test_a_prompt_read_in_chunks_gives_the_references_logits(
    case: str, graph: ExportedGraph
) -> None:
    expected = reference(case)
    found = []
    for start in range(0, len(expected.prompt), 7):
        chunk = expected.prompt[start : start + 7]
        (logits,) = graph.run([chunk], held=[start])
        found.append(logits)
    assert relative_difference(np.concatenate(found), expected.logits) < TOLERANCE


def test_rows_of_a_batch_do_not_touch_each_other(case: str, graph: ExportedGraph) -> None:
    expected = reference(case)
    lengths = (len(expected.prompt), 3, 19)
    prompts = [expected.prompt[:length] for length in lengths]
    for row, logits in enumerate(graph.run(prompts, held=[0, 0, 0])):
        assert relative_difference(logits, expected.logits[: lengths[row]]) < TOLERANCE
    # One more token for each, the first row's again so that all have a reference.
    again = [expected.prompt[n : n + 1] or expected.prompt[-1:] for n in lengths]
    held = [min(n, len(expected.prompt) - 1) for n in lengths]
    for row, logits in enumerate(graph.run(again, held=held)):
        at = held[row]
        assert relative_difference(logits, expected.logits[at : at + 1]) < TOLERANCE


def test_greedy_tokens_are_the_references(case: str, graph: ExportedGraph) -> None:
    expected = reference(case)
    if not expected.greedy:
        pytest.skip("its positions depend on the length of the text")
    assert graph.greedy(expected.prompt, len(expected.greedy)) == expected.greedy


@pytest.mark.parametrize(("recipe", "error"), [("int8", 0.08), ("int4", 0.6)])
def test_quantized_graphs_run_and_stay_near(
    case: str, recipe: Recipe, error: float, tmp_path: Path
) -> None:
    # Random weights are as hard to round as weights can be: no block has a shape to find.
    expected = reference(case)
    options = ExportOptions(quant=recipe, calibrate=False, context_length=expected.context_length)
    bundle = export_model(write_checkpoint(case, tmp_path), tmp_path / "b", options).bundle_path
    with closing(ExportedGraph(bundle)) as opened:
        (logits,) = opened.run([expected.prompt], held=[0])
    difference = np.sqrt(np.mean((logits - expected.logits) ** 2)) / expected.logits.std()
    assert float(difference) < error
