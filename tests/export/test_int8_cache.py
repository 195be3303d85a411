"""The graph over an int8 cache against the one over a float32 cache, one attention at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edge_export.graph.int8_cache import (
    OLDEST_ONNXRUNTIME,
    CacheScales,
    int8_cache_graph,
    rotary_dimensions,
)
from edge_export.quantize.kv_scales import measure_scales
from numpy.typing import NDArray

from edge_runtime.errors import ExportError

pytest.importorskip("onnxruntime")
from support.attention_graph import (
    DIMENSIONS,
    HEAD_SIZE,
    KV_HEADS,
    VOCABULARY,
    WIDTH,
    OpenedAttention,
    attention_graph,
    tables,
)
from support.int8_attention import OLDEST, needs_int8_attention

TOKENS = [int(t) for t in np.random.default_rng(1).integers(0, VOCABULARY, 40)]
VARIANTS: dict[str, dict[str, Any]] = {
    "packed": {},
    "in three": {"packed": False},
    "without positions": {"rotary": False},
    "in three, without positions": {"packed": False, "rotary": False},
    "scaled and capped": {"scale": 0.1, "softcap": 3.0},
    "looking back a little": {"local_window_size": 9},
}
Open = Callable[..., tuple[OpenedAttention, OpenedAttention, CacheScales]]


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    def open_both(**variant: Any) -> tuple[OpenedAttention, OpenedAttention, CacheScales]:
        model = attention_graph(tables(), **variant)
        exact = OpenedAttention(model, tmp_path, "float32")
        (scales,) = measure_scales(
            model, tmp_path / "float32.onnx", DIMENSIONS, [np.array(TOKENS, np.int64)]
        )
        model = int8_cache_graph(model, [scales])
        return exact, OpenedAttention(model, tmp_path, "int8"), scales

    return open_both


def in_pieces(graph: OpenedAttention, sizes: Sequence[int]) -> NDArray[np.float32]:
    """What all tokens attend to, read in pieces of these sizes over and over."""
    found, held = [], 0
    while held < len(TOKENS):
        for size in sizes:
            piece = TOKENS[held : held + size]
            if piece:
                found += graph.run([piece], held=held)
                held += len(piece)
    return np.concatenate(found)


def test_tests_are_skipped_where_the_graph_would_be_refused() -> None:
    assert OLDEST == OLDEST_ONNXRUNTIME


@needs_int8_attention
@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_attended_is_nearly_what_the_float_graph_gives(opened: Open, variant: str) -> None:
    exact, int8, _ = opened(**VARIANTS[variant])
    expected = in_pieces(exact, [40])
    found = in_pieces(int8, [40])
    error = float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))
    assert 1e-5 < error < 0.03


@needs_int8_attention
@pytest.mark.parametrize("sizes", [[1], [3], [5], [6], [7, 1], [16], [33]])
@pytest.mark.parametrize("variant", VARIANTS)
def test_how_a_prompt_is_cut_does_not_show(
    opened: Open, variant: str, sizes: Sequence[int]
) -> None:
    """Chunks, and a few tokens, which take another way through the graph."""
    _, int8, _ = opened(**VARIANTS[variant])
    at_once = in_pieces(int8, [40])
    held = [int8.cache.array(0, part)[0].copy() for part in (0, 1)]
    assert np.abs(in_pieces(int8, sizes) - at_once).max() < 1e-4 * np.abs(at_once).max()
    for part in (0, 1):
        # A number at a half may be rounded either way.
        assert np.abs(int8.cache.array(0, part)[0].astype(int) - held[part]).max() <= 1


@needs_int8_attention
@pytest.mark.parametrize("size", [1, 16])
def test_the_cache_holds_keys_and_values_rounded_to_their_scales(opened: Open, size: int) -> None:
    exact, int8, scales = opened()
    in_pieces(exact, [size])
    in_pieces(int8, [size])
    for part, scale in enumerate((scales.key, scales.value)):
        expected = np.round(exact.cache.array(0, part)[0, :, :40] / scale[:, None])
        found = int8.cache.array(0, part)[0, :, :40]
        assert found.dtype == np.int8
        assert np.abs(found - expected).max() <= 1
        assert (found == expected).mean() > 0.999
        assert np.abs(found.astype(int)).max() > 100, "the range is used"
        assert not int8.cache.array(0, part)[0, :, 40:].any()


@needs_int8_attention
def test_only_the_slots_of_the_step_are_written(opened: Open) -> None:
    _, int8, _ = opened()
    int8.run([TOKENS[:20]], first_slot=1)
    int8.run([TOKENS[20:21]], held=20, first_slot=1)
    for part in (0, 1):
        assert int8.cache.array(0, part)[1, :, :21].any(axis=(0, 2)).all()
        assert not int8.cache.array(0, part)[[0, 2]].any()


@needs_int8_attention
@pytest.mark.parametrize("lengths", [(20, 14, 17), (4, 2, 3)])
def test_fresh_rows_of_several_lengths_are_read_as_each_alone(
    opened: Open, lengths: Sequence[int]
) -> None:
    _, int8, _ = opened()
    rows = [TOKENS[i : i + length] for i, length in enumerate(lengths)]
    alone = [int8.run([row])[0] for row in rows]
    together = int8.run(rows)
    for expected, found in zip(alone, together, strict=True):
        assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()


@needs_int8_attention
def test_rows_that_decode_together_do_as_each_alone(opened: Open) -> None:
    _, int8, _ = opened()
    prompts = [TOKENS[i : i + 20] for i in range(3)]
    for slot, prompt in enumerate(prompts):
        int8.run([prompt], first_slot=slot)
    together = int8.run([[1], [2], [3]], held=20)
    for slot, expected in enumerate(together):
        found = int8.run([[slot + 1]], held=20, first_slot=slot)[0]
        assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()


def test_channels_that_rotate_together_have_one_scale_that_no_position_exceeds(
    tmp_path: Path,
) -> None:
    model = attention_graph(tables())
    assert rotary_dimensions(model) == [HEAD_SIZE]
    graph = OpenedAttention(model, tmp_path, "float32")
    ids = np.array(TOKENS[:8], np.int64)
    (scales,) = measure_scales(model, tmp_path / "float32.onnx", DIMENSIONS, [ids])
    assert (scales.key[:, : HEAD_SIZE // 2] == scales.key[:, HEAD_SIZE // 2 :]).all()
    graph.run([[0] * 50])
    graph.run([TOKENS[:8]], held=50)  # the same tokens much later
    for part, scale in enumerate((scales.key, scales.value)):
        later = np.abs(graph.cache.array(0, part)[0, :, 50:58]).max(axis=1)
        assert (later <= 127 * scale).all()
    assert (np.abs(graph.cache.array(0, 1)[0, :, 50:58]).max(axis=1) > 100 * scales.value).all()


def test_without_positions_each_channel_has_its_own_scale(tmp_path: Path) -> None:
    model = attention_graph(tables(), rotary=False)
    assert rotary_dimensions(model) == [0]
    OpenedAttention(model, tmp_path, "float32")
    ids = np.array(TOKENS, np.int64)
    (scales,) = measure_scales(model, tmp_path / "float32.onnx", DIMENSIONS, [ids])
    assert len(np.unique(scales.key)) == KV_HEADS * HEAD_SIZE


def test_a_channel_that_is_silent_on_the_text_still_has_a_scale(tmp_path: Path) -> None:
    table = tables()
    table[:, WIDTH + KV_HEADS * HEAD_SIZE + 3] = 0
    model = attention_graph(table)
    OpenedAttention(model, tmp_path, "float32")
    ids = np.array(TOKENS, np.int64)
    (scales,) = measure_scales(model, tmp_path / "float32.onnx", DIMENSIONS, [ids])
    assert 0 < scales.value[0, 3] < scales.value.max() / 100


def test_keys_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    table = tables()
    table[TOKENS[3]] = np.inf
    model = attention_graph(table)
    OpenedAttention(model, tmp_path, "float32")
    with pytest.raises(ExportError, match="not finite"):
        measure_scales(model, tmp_path / "float32.onnx", DIMENSIONS, [np.array(TOKENS, np.int64)])
