"""The float32 reference, against sums small enough to do by hand or another way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from edge_tools.reference_llama import ReferenceLlama
from support.tiny_gguf import write_tiny_gguf

from edge_runtime.errors import UnsupportedModelError

IDS = [5, 17, 3, 99, 42, 7]


@pytest.fixture
def model(tmp_path: Path) -> ReferenceLlama:
    write_tiny_gguf(tmp_path / "tiny.gguf", kind="F32", biases=True)
    return ReferenceLlama.open(tmp_path / "tiny.gguf")


def test_every_position_gets_logits_over_the_vocabulary(model: ReferenceLlama):
    logits = model.logits(IDS)
    assert logits.shape[0] == len(IDS)
    assert logits.dtype == np.float32
    assert np.isfinite(logits).all()


def test_a_token_sees_the_past_and_never_the_future(model: ReferenceLlama):
    whole = model.logits(IDS)
    np.testing.assert_allclose(model.logits(IDS[:3]), whole[:3], rtol=0, atol=1e-4)
    changed = model.logits([6, *IDS[1:]])
    assert np.abs(changed[3:] - whole[3:]).max() > 1e-4


def test_positions_matter(model: ReferenceLlama):
    # Without rotary positions, swapping the first two tokens would leave the third's mix as it was.
    a, b = model.logits([5, 17, 3]), model.logits([17, 5, 3])
    assert np.abs(a[2] - b[2]).max() > 1e-4


def test_one_layer_equals_the_formula_written_out_token_by_token(tmp_path: Path):
    w = write_tiny_gguf(
        tmp_path / "t.gguf", kind="F32", layers=1, hidden=8, heads=2, kv_heads=1, ffn=16
    )
    heads, head_size, epsilon, base = 2, 4, 1e-5, 10000.0

    def norm(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean() + epsilon) * gain

    def rotated(x: np.ndarray, position: int) -> np.ndarray:
        turned = x.copy()
        for pair in range(head_size // 2):
            angle = position * base ** (-2 * pair / head_size)
            c, s = np.cos(angle), np.sin(angle)
            a, b = x[2 * pair], x[2 * pair + 1]
            turned[2 * pair], turned[2 * pair + 1] = a * c - b * s, a * s + b * c
        return turned

    w = {name: value.astype(np.float64) for name, value in w.items()}
    keys, values, expected = [], [], []
    for position, token in enumerate(IDS):
        x = w["token_embd.weight"][token]
        h = norm(x, w["blk.0.attn_norm.weight"])
        keys.append(rotated(w["blk.0.attn_k.weight"] @ h, position))
        values.append(w["blk.0.attn_v.weight"] @ h)
        queries = (w["blk.0.attn_q.weight"] @ h).reshape(heads, head_size)
        mixed = []
        for query in queries:
            scores = np.array([k @ rotated(query, position) for k in keys]) / np.sqrt(head_size)
            weights = np.exp(scores - scores.max())
            mixed.append(weights / weights.sum() @ np.array(values))
        x = x + w["blk.0.attn_output.weight"] @ np.concatenate(mixed)
        h = norm(x, w["blk.0.ffn_norm.weight"])
        gate = w["blk.0.ffn_gate.weight"] @ h
        x = x + w["blk.0.ffn_down.weight"] @ (
            gate / (1 + np.exp(-gate)) * (w["blk.0.ffn_up.weight"] @ h)
        )
        expected.append(w["token_embd.weight"] @ norm(x, w["output_norm.weight"]))

    found = ReferenceLlama.open(tmp_path / "t.gguf").logits(IDS)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4)


def test_an_untied_head_is_used(tmp_path: Path):
    w = write_tiny_gguf(tmp_path / "t.gguf", kind="F32", tied=False)
    model = ReferenceLlama.open(tmp_path / "t.gguf")
    hidden = model.hidden(IDS)
    np.testing.assert_allclose(model.head(hidden), hidden @ w["output.weight"].T, atol=1e-5)


def test_frequency_factors_slow_the_rotation(tmp_path: Path):
    write_tiny_gguf(tmp_path / "plain.gguf", kind="F32")
    factors = np.full(8, 4.0, np.float32)  # hidden 64, 4 heads: 8 pairs a head
    write_tiny_gguf(
        tmp_path / "slow.gguf", kind="F32", extra_tensors={"rope_freqs.weight": factors}
    )
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    write_tiny_gguf(tmp_path / "linear.gguf", kind="F32", extra_metadata=linear)
    plain, slow, interpolated = (
        ReferenceLlama.open(tmp_path / f"{name}.gguf").logits(IDS)
        for name in ("plain", "slow", "linear")
    )
    np.testing.assert_allclose(slow, interpolated, atol=1e-4)
    assert np.abs(slow - plain).max() > 1e-4


@pytest.mark.parametrize(
    "metadata, word",
    [
        ({"llama.expert_count": 4}, "experts"),
        ({"llama.rope.scaling.type": "longrope"}, "longrope"),
    ],
)
def test_what_it_cannot_compute_it_refuses(tmp_path: Path, metadata: dict[str, object], word: str):
    write_tiny_gguf(tmp_path / "t.gguf", kind="F32", extra_metadata=metadata)
    with pytest.raises(UnsupportedModelError, match=word):
        ReferenceLlama.open(tmp_path / "t.gguf")


def test_another_architecture_is_refused_by_name(tmp_path: Path):
    write_tiny_gguf(tmp_path / "t.gguf", kind="F32", architecture="mamba")
    with pytest.raises(UnsupportedModelError, match="mamba"):
        ReferenceLlama.open(tmp_path / "t.gguf")
