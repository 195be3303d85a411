"""The same weights from GGUF: the logits and greedy tokens are transformers' as well."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from edge_export.pipeline import ExportOptions, export_model
from support.golden import (
    EXACT_WINDOWS,
    WINDOWED,
    ExportedGraph,
    reference,
    relative_difference,
)
from support.golden_gguf import GGUF_CASES, write_gguf

pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("case", sorted(GGUF_CASES))
def test_a_gguf_file_gives_the_references_logits_and_tokens(case: str, tmp_path: Path) -> None:
    if case in WINDOWED and not EXACT_WINDOWS:
        pytest.skip("this onnxruntime's windows are one token longer")
    expected = reference(case)
    options = ExportOptions(quant="f32", context_length=expected.context_length)
    bundle = export_model(write_gguf(case, tmp_path), tmp_path / "bundle", options).bundle_path
    with closing(ExportedGraph(bundle)) as graph:
        (logits,) = graph.run([expected.prompt], held=[0])
        assert relative_difference(logits, expected.logits) < 1e-3
        assert graph.greedy(expected.prompt, len(expected.greedy)) == expected.greedy
