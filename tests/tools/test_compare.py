from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from edge_tools.agreement import Agreement, Parting, equal_tokens, until_end
from edge_tools.comparison_report import BEGIN, END, cells, plot, write_readme
from edge_tools.contest import medians_of
from edge_tools.peers.peer import EDGE, LlamaCpp, Peer, PeerError
from edge_tools.peers.requantize import KINDS, requantize
from gguf import GGUFReader
from gguf.quants import dequantize
from support.tiny_gguf import write_tiny_gguf

from edge_runtime.errors import UsageError

COMPARISON = {
    "model": "tiny.gguf",
    "threads": 2,
    "rounds": 3,
    "machine": {"cpu": "A Processor", "onnxruntime": "onnxruntime 1.32.0"},
    "results": [
        {
            "label": "edge-runtime int4",
            "version": "0.1.0",
            "figures": {"decode_0": 100.0, "peak_rss_mb": 190.0, "kl": 0.1, "four_streams": None},
        },
        {
            "label": "llama.cpp, Q4_0",
            "version": "0.3",
            "figures": {"decode_0": 80.0, "peak_rss_mb": 230.0, "kl": None, "four_streams": 5.0},
        },
    ],
}


def test_a_figure_that_one_round_lacks_has_no_median():
    rounds = [{"a": 1.0, "b": 1.0}, {"a": 5.0, "b": None}, {"a": 2.0, "b": 1.0}]
    assert medians_of(rounds) == {"a": 2.0, "b": None}


def test_the_best_of_each_row_is_bold_and_a_missing_figure_a_dash():
    rows = {row[0]: row[1:] for row in cells(COMPARISON)}
    assert rows["decode with nothing held, tokens/s"] == ["**100.0**", "80.0"]
    assert rows["peak memory of a 300-token exchange, MiB"] == ["**190**", "230"]
    assert rows["KL to the file's own weights, nats a token"] == ["**0.1000**", "-"]
    assert rows["four streams together, tokens/s"] == ["-", "**5.0**"]


def test_the_readmes_table_is_replaced_and_nothing_else(tmp_path: Path):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nold figures\n{END}\nafter\n")
    write_readme(readme, COMPARISON)
    text = readme.read_text()
    assert text.startswith(f"before\n{BEGIN}\n| tiny.gguf |")
    assert text.endswith(f"{END}\nafter\n")
    assert "old figures" not in text
    assert "A Processor, 2 threads" in text
    write_readme(readme, COMPARISON)
    assert readme.read_text() == text


def test_a_readme_without_a_place_for_the_table_is_left_alone(tmp_path: Path):
    readme = tmp_path / "README.md"
    readme.write_text("nothing\n")
    with pytest.raises(UsageError, match="no place for the table"):
        write_readme(readme, COMPARISON)
    assert readme.read_text() == "nothing\n"


def test_the_picture_is_drawn(tmp_path: Path):
    pytest.importorskip("matplotlib")
    plot(COMPARISON, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("kind", KINDS)
def test_a_requantized_file_is_the_same_model_in_another_kind(tmp_path: Path, kind: str):
    source, made = tmp_path / "a.gguf", tmp_path / "b.gguf"
    write_tiny_gguf(source, kind="F32")
    requantize(source, made, kind)
    before, after = GGUFReader(source), GGUFReader(made)
    ours = {name: field.contents() for name, field in before.fields.items()}
    theirs = {name: field.contents() for name, field in after.fields.items()}
    different = {"general.file_type", "GGUF.tensor_count", "GGUF.kv_count"}
    assert {k: v for k, v in ours.items() if k not in different} == {
        k: v for k, v in theirs.items() if k not in different
    }
    for a, b in zip(before.tensors, after.tensors, strict=True):
        assert (a.name, list(a.shape)) == (b.name, list(b.shape))
        assert b.tensor_type.name == (kind if len(a.shape) > 1 else "F32")
        x, y = dequantize(a.data, a.tensor_type), dequantize(b.data, b.tensor_type)
        assert np.abs(x - y).max() <= np.abs(x).max() / 7


def test_a_kind_that_cannot_be_made_is_named(tmp_path: Path):
    with pytest.raises(UsageError, match="IQ9"):
        requantize(tmp_path / "a.gguf", tmp_path / "b.gguf", "IQ9")


@pytest.mark.model
def test_this_runtime_is_measured_through_the_same_pipe(real_bundle: Path):
    with Peer(EDGE) as peer:
        peer.load(real_bundle, threads=2, context_length=256)
        alone = peer.generate([1780, 314, 260, 3575], 4)
        assert len(alone.tokens) == 4
        assert (peer.together([[1780, 314], [260, 3575]], 4) or 0) > 0
        assert (peer.cached([1780, 314, 260], [3575]) or 0) > 0
        assert not peer.score([1780], real_bundle / "never")


def test_a_runtime_that_ends_is_an_error_of_the_tool(tmp_path: Path):
    with Peer(EDGE) as peer, pytest.raises(PeerError, match="edge-runtime: "):
        peer.load(tmp_path / "missing", threads=1, context_length=64)


def test_equal_tokens_count_from_the_start():
    assert equal_tokens([1, 2, 3], [1, 2, 4]) == 2
    assert equal_tokens([1, 2], [1, 2]) == 2
    assert equal_tokens([9, 2], [1, 2]) == 0


def test_an_answer_is_compared_to_its_end_and_no_further():
    assert until_end([5, 6, 2, 9], {2, 3}) == [5, 6, 2]
    assert until_end([5, 6], {2, 3}) == [5, 6]


@pytest.mark.parametrize(
    "parting, holds",
    [
        (None, True),
        (Parting(24, "a", "b", 1.0, -1.0, 3.0), True),
        (Parting(5, "a", "b", 0.1, -0.1, 0.05), True),
        (Parting(5, "a", "b", 0.1, -0.1, -2.0), False),
    ],
)
def test_an_early_parting_holds_only_on_a_near_tie(parting: Parting | None, holds: bool):
    assert Agreement("?", 32, parting).holds is holds


def test_an_interpreter_without_llama_cpp_is_named(tmp_path):
    with pytest.raises(UsageError, match="cannot import llama_cpp"):
        LlamaCpp(tmp_path / "python")
