"""Rotary scaling against the formulas of the papers, worked out separately."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from edge_export.architectures.registry import read_spec
from edge_export.architectures.spec import DecoderSpec
from edge_export.sources.gguf import open_gguf
from support.tiny_gguf import write_tiny_gguf

from edge_runtime.errors import SourceFormatError, UnsupportedModelError


def spec_of(tmp_path: Path, **metadata: object) -> DecoderSpec:
    source = tmp_path / "tiny.gguf"
    changes = {f"llama.{key.replace('__', '.')}": value for key, value in metadata.items()}
    write_tiny_gguf(source, kind="F16", extra_metadata=changes)
    with open_gguf(source) as checkpoint:
        return read_spec(checkpoint)


def test_tables_hold_cosines_and_sines_of_position_times_frequency(tmp_path: Path) -> None:
    rotary = spec_of(tmp_path).rotary
    cos, sin = rotary.tables(5)
    assert cos.shape == sin.shape == (5, 8)
    assert cos[3, 2] == pytest.approx(math.cos(3 * 10000 ** (-4 / 16)))
    assert sin[3, 2] == pytest.approx(math.sin(3 * 10000 ** (-4 / 16)))


def test_yarn_keeps_fast_turns_interpolates_slow_ones_and_raises_the_magnitude(
    tmp_path: Path,
) -> None:
    rotary = spec_of(
        tmp_path,
        context_length=4096,
        rope__scaling__type="yarn",
        rope__scaling__factor=4.0,
        rope__scaling__original_context_length=1024,
    ).rotary
    plain = 10000.0 ** (-np.arange(0, 16, 2) / 16)
    turns = 1024 * plain / (2 * math.pi)
    assert rotary.inverse_frequencies[turns > 32] == pytest.approx(plain[turns > 32])
    assert rotary.inverse_frequencies[turns < 1] == pytest.approx(plain[turns < 1] / 4)
    between = (turns < 16) & (turns > 2)
    ratio = rotary.inverse_frequencies[between] / plain[between]
    assert ((ratio > 0.25) & (ratio < 1.0)).all()
    assert rotary.magnitude == pytest.approx(1 + 0.1 * math.log(4))


def test_an_unknown_scaling_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="spiral"):
        spec_of(tmp_path, rope__scaling__type="spiral", rope__scaling__factor=2.0)


def test_more_rotating_dimensions_than_a_head_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceFormatError, match="18"):
        spec_of(tmp_path, rope__dimension_count=18)


def test_experts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="8 experts"):
        spec_of(tmp_path, expert_count=8)


@pytest.mark.parametrize("value", [0, 3_000_000_000])
def test_a_nonsensical_number_is_refused_by_key(tmp_path: Path, value: int) -> None:
    with pytest.raises(SourceFormatError, match="embedding_length"):
        spec_of(tmp_path, embedding_length=value)


@pytest.mark.parametrize(
    "metadata",
    [
        {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0},
        {"rope__scaling__factor": 4.0},
        {"rope__scale_linear": 4.0},
    ],
)
def test_linear_scaling_is_read_however_a_file_spells_it(
    tmp_path: Path, metadata: dict[str, object]
) -> None:
    plain = spec_of(tmp_path).rotary.inverse_frequencies
    scaled = spec_of(tmp_path, **metadata).rotary.inverse_frequencies
    assert scaled == pytest.approx(plain / 4)


def test_no_scaling_is_none_whatever_the_factor(tmp_path: Path) -> None:
    plain = spec_of(tmp_path).rotary.inverse_frequencies
    told = spec_of(tmp_path, rope__scaling__type="none", rope__scaling__factor=4.0).rotary
    assert told.inverse_frequencies == pytest.approx(plain)


def test_an_unknown_scaling_is_refused_even_without_a_factor(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="longrope"):
        spec_of(tmp_path, rope__scaling__type="longrope")


@pytest.mark.parametrize(
    "metadata",
    [
        {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__freq_base": 1.0},
        {"rope__dimension_count": 0},
        {"embedding_length": 3},
        {"block_count": [1, 2, 3] * 100},
    ],
)
def test_numbers_that_no_model_has_are_one_line(
    tmp_path: Path, metadata: dict[str, object]
) -> None:
    with pytest.raises(SourceFormatError) as caught:
        spec_of(tmp_path, **metadata)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 120


def test_a_yarn_factor_beyond_the_context_is_no_division_by_zero(tmp_path: Path) -> None:
    rotary = spec_of(tmp_path, rope__scaling__type="yarn", rope__scaling__factor=1e6).rotary
    assert np.isfinite(rotary.inverse_frequencies).all()
