"""Carry GGUF kinds with a float minimum into 8-bit blocks, nearly exactly.

In these kinds a value is ``minimum + step * q`` with a small integer q. With an 8-bit scale of
``step / k`` for an integer k the steps are met exactly and only ``minimum / scale`` has to be
rounded, which moves a whole block by one small constant. The k that makes it smallest is found
from each block's own step and minimum, without touching the values; a least-squares refit of the
scale then takes part of the rest. On a real Q4_1 file the error is a 1/150 of a source step, where
rounding between the block's extremes leaves 1/59. Knows no files; layouts are those of ggml's
quantized blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_export.quantize.blocks import BlockQuantized
from edge_export.quantize.exact import bits_as_codes, half_floats, low_then_high_nibbles
from edge_export.quantize.round_to_nearest import round_to_8_bits


@dataclass(frozen=True)
class FloatMinimumBlocks:
    """Blocks of a source: value = minimum + step * q.

    ``q`` is uint8 [M, block_size]; ``step`` and ``minimum`` are float32 [M], formed as the
    source's own decoder forms them.
    """

    q: NDArray[np.uint8]
    step: NDArray[np.float32]
    minimum: NDArray[np.float32]


def _q4_1(blocks: NDArray[np.uint8]) -> FloatMinimumBlocks:
    # float16 step, float16 minimum, 16 bytes of nibbles.
    halves = half_floats(blocks[:, :4])
    return FloatMinimumBlocks(low_then_high_nibbles(blocks[:, 4:]), halves[:, 0], halves[:, 1])


def _q5_1(blocks: NDArray[np.uint8]) -> FloatMinimumBlocks:
    # float16 step, float16 minimum, 32 fifth bits, 16 bytes of nibbles.
    halves = half_floats(blocks[:, :4])
    q = low_then_high_nibbles(blocks[:, 8:])
    q |= bits_as_codes(blocks[:, 4:8]) << np.uint8(4)
    return FloatMinimumBlocks(q, halves[:, 0], halves[:, 1])


def _six_bit_scales(stored: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Unpack the 12 bytes that hold eight 6-bit scales and eight 6-bit minimums: [M, 8] each."""
    scale, minimum, nibbles = stored[:, :4], stored[:, 4:8], stored[:, 8:]
    six, four, top = np.uint8(63), np.uint8(15), np.uint8(0x30)
    last_scales = (nibbles & four) | (scale >> np.uint8(2) & top)
    last_minimums = (nibbles >> np.uint8(4)) | (minimum >> np.uint8(2) & top)
    return (
        np.concatenate([scale & six, last_scales], axis=1),
        np.concatenate([minimum & six, last_minimums], axis=1),
    )


def _scaled(
    halves: NDArray[np.float32], scales: NDArray[np.uint8], minimums: NDArray[np.uint8]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    step = halves[:, 0:1] * scales.astype(np.float32)
    minimum = -(halves[:, 1:2] * minimums.astype(np.float32))
    return step.reshape(-1), minimum.reshape(-1)


def _nibbles_by_32(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Each 32 bytes hold 32 low nibbles, then 32 high ones: uint8 [M, 8, 32]."""
    return low_then_high_nibbles(packed.reshape(-1, 4, 32)).reshape(-1, 8, 32)


def _q4_k(blocks: NDArray[np.uint8]) -> FloatMinimumBlocks:
    # float16 scales of steps and of minimums, 12 bytes of scales, 128 bytes of nibbles.
    step, minimum = _scaled(half_floats(blocks[:, :4]), *_six_bit_scales(blocks[:, 4:16]))
    return FloatMinimumBlocks(_nibbles_by_32(blocks[:, 16:]).reshape(-1, 32), step, minimum)


def _q5_k(blocks: NDArray[np.uint8]) -> FloatMinimumBlocks:
    # As Q4_K with 32 bytes of fifth bits before the nibbles: bit i of byte j is value j of part i.
    step, minimum = _scaled(half_floats(blocks[:, :4]), *_six_bit_scales(blocks[:, 4:16]))
    fifth = bits_as_codes(blocks[:, 16:48, np.newaxis])  # [M, 32, 8]
    q = _nibbles_by_32(blocks[:, 48:]) | fifth.transpose(0, 2, 1) << np.uint8(4)
    return FloatMinimumBlocks(q.reshape(-1, 32), step, minimum)


def _q2_k(blocks: NDArray[np.uint8]) -> FloatMinimumBlocks:
    # 16 bytes of scale and minimum nibbles, 64 bytes of bit pairs, the two float16 scales. Each 32
    # bytes hold four parts of 32 values, which take their bit pairs in turn.
    scales = blocks[:, :16]
    step, minimum = _scaled(
        half_floats(blocks[:, 80:84]), scales & np.uint8(15), scales >> np.uint8(4)
    )
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    q = blocks[:, 16:80].reshape(-1, 2, 1, 32) >> shifts & np.uint8(3)
    return FloatMinimumBlocks(q.reshape(-1, 16), step, minimum)


@dataclass(frozen=True)
class _FloatMinimumKind:
    block_size: int
    source_bytes: int  # bytes of one source block
    decode: Callable[[NDArray[np.uint8]], FloatMinimumBlocks]


_KINDS: Mapping[str, _FloatMinimumKind] = {
    "Q4_1": _FloatMinimumKind(32, 20, _q4_1),
    "Q5_1": _FloatMinimumKind(32, 24, _q5_1),
    "Q2_K": _FloatMinimumKind(16, 84, _q2_k),
    "Q4_K": _FloatMinimumKind(32, 144, _q4_k),
    "Q5_K": _FloatMinimumKind(32, 176, _q5_k),
}

FLOAT_MINIMUM_KINDS: frozenset[str] = frozenset(_KINDS)
"""The kinds that :func:`carry_float_minimum` takes."""


def decode_float_minimum(raw: NDArray[np.uint8], kind: str) -> FloatMinimumBlocks:
    """Codes, steps and minimums of rows of one of :data:`FLOAT_MINIMUM_KINDS`.

    Args:
        raw: uint8 [N, bytes per row], the source's own bytes.
        kind: the ggml name of the kind.

    Raises:
        KeyError: the kind has no float minimum.
    """
    how = _KINDS[kind]
    return how.decode(raw.reshape(-1, how.source_bytes))


def carry_float_minimum(raw: NDArray[np.uint8], kind: str) -> BlockQuantized:
    """Carry rows of one of :data:`FLOAT_MINIMUM_KINDS` into 8 bits.

    Args:
        raw: uint8 [N, bytes per row], the source's own bytes.
        kind: the ggml name of the kind.

    Returns:
        8-bit blocks with zero points. Where the source's steps or minimums are not finite, neither
        are the scales.

    Raises:
        KeyError: the kind has no float minimum.
    """
    how = _KINDS[kind]
    with np.errstate(all="ignore"):
        scales, codes, points = _fit(decode_float_minimum(raw, kind))
    shape = (len(raw), -1)
    return BlockQuantized.from_codes(
        codes.reshape(len(raw), -1, how.block_size),
        scales.reshape(shape),
        bits=8,
        zero_points=points.reshape(shape),
    )


def _fit(
    source: FloatMinimumBlocks,
) -> tuple[NDArray[np.float32], NDArray[np.uint8], NDArray[np.uint8]]:
    """Scales [M], codes [M, block_size] and zero points [M] of the best k of every block."""
    constant = source.step == 0
    # A block of one value is one step of itself: its minimum as the step, and q = 0.
    step = np.where(constant, source.minimum, source.step).astype(np.float64)
    step[step == 0] = 1.0
    minimum = source.minimum.astype(np.float64)
    q = np.where(constant[:, np.newaxis], np.uint8(0), source.q)
    lowest, highest = q.min(axis=1).astype(np.int32), q.max(axis=1).astype(np.int32)

    multiple, offset = _best_multiple(minimum / step, lowest, highest)
    # value = scale * (multiple * q + offset), all integers in the brackets within 8 bits.
    room = 255 - (multiple * highest + offset)
    floor = np.maximum(0, -(multiple * lowest + offset))
    points = np.clip(128, floor, np.minimum(255, room))
    codes = q * multiple[:, np.newaxis].astype(np.int16) + (offset + points)[:, np.newaxis].astype(
        np.int16
    )
    scales = _least_squares(q, step, minimum, multiple, offset)

    lost = multiple == 0
    if lost.any():
        # A minimum so far from zero that even whole steps do not fit: round between extremes.
        values = source.q[lost] * source.step[lost, np.newaxis]
        values += source.minimum[lost, np.newaxis]
        rounded = round_to_8_bits(values, block_size=values.shape[1])
        scales[lost] = rounded.scales[:, 0]
        codes[lost] = rounded.codes()[:, 0]
        points[lost] = rounded.block_zero_points()[:, 0]
    return scales, codes.astype(np.uint8), points.astype(np.uint8)


def _best_multiple(
    ratio: NDArray[np.float64], lowest: NDArray[np.int32], highest: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The k in which ``k * ratio`` is nearest to an integer, in units of the step, and that integer.

    Zero where no k keeps the codes and zero within 8 bits, or where the ratio is not finite.
    """
    best = np.full(ratio.shape, np.inf)
    multiple = np.zeros(ratio.shape, np.int32)
    offset = np.zeros(ratio.shape, np.int32)
    # Beyond 255 the cast to int would overflow, and no zero point reaches that far anyway.
    ratio = np.where(np.abs(ratio) <= 255, ratio, np.nan)
    for k in range(1, 32):
        nearest = np.rint(k * ratio)
        error = np.abs(k * ratio - nearest) / k
        low, high = k * lowest + nearest, k * highest + nearest
        better = (np.maximum(high, 0) - np.minimum(low, 0) <= 255) & (error < best)
        best[better] = error[better]
        multiple[better] = k
        offset[better] = nearest[better].astype(np.int32)
    return multiple, offset


def _least_squares(
    q: NDArray[np.uint8],
    step: NDArray[np.float64],
    minimum: NDArray[np.float64],
    multiple: NDArray[np.int32],
    offset: NDArray[np.int32],
) -> NDArray[np.float32]:
    """The scale of least squared error, float32 [M], from sums of q alone."""
    count = q.shape[1]
    first = q.sum(axis=1, dtype=np.int64)
    second = np.einsum("mb,mb->m", q, q, dtype=np.int64)
    products = multiple * step * second + (step * offset + minimum * multiple) * first
    products += count * minimum * offset
    squares = multiple * multiple * second + 2 * multiple * offset * first
    squares += count * offset * offset
    scale = np.where(squares > 0, products / np.maximum(squares, 1), 0.0)
    return scale.astype(np.float32)
