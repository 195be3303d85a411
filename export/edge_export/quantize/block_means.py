"""Carry 4-bit GGUF kinds with a float minimum in 4 bits, nearly exactly.

In these kinds a value is ``minimum + step * q``. A zero point has to be an integer, so it meets the
minimum only to half a step, which is most of what storing such a file in 4 bits loses; a float zero
point would disable onnxruntime's fast kernels. But what is left over is one number a block, and it
multiplies the sum of the block's inputs: so the means of every 32 inputs become further inputs, and
the left-overs further 4-bit columns, which moves a weight by a fiftieth of its step instead of a
quarter. It costs a twentieth more weights, and a pooling and a concatenation for each input.

Knows no files; :mod:`edge_export.graph.linear` makes the further inputs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge_export.quantize.blocks import MEAN_OF, BlockQuantized
from edge_export.quantize.float_minimum import decode_float_minimum

BLOCK_MEANS_KINDS = frozenset(("Q4_1", "Q4_K"))
"""The kinds that :func:`carry_with_means` takes: 4-bit codes in blocks of 32."""

_MIDDLE = 8
_HIGHEST = 15


def carry_with_means(raw: NDArray[np.uint8], kind: str) -> BlockQuantized:
    """Carry rows of one of :data:`BLOCK_MEANS_KINDS` into 4 bits.

    Args:
        raw: uint8 [N, bytes per row], the source's own bytes.
        kind: the ggml name of the kind.

    Returns:
        4-bit blocks of 32 with zero points, the last ones multiplying means. Where the source's
        steps or minimums are not finite, neither are the scales.

    Raises:
        KeyError: the kind has no float minimum.
    """
    rows = len(raw)
    with np.errstate(all="ignore"):
        source = decode_float_minimum(raw, kind)
        constant = source.step == 0
        step = np.where(constant, np.float32(1), source.step)
        points = np.clip(np.rint(-source.minimum / step), 0, _HIGHEST)
        points = np.where(constant | ~np.isfinite(points), _MIDDLE, points)
        codes = np.where(constant[:, np.newaxis], np.uint8(_MIDDLE), source.q)
        # What the codes and zero points leave, as a factor of the mean of the block's inputs.
        left = (source.minimum + points.astype(np.float32) * source.step) * np.float32(MEAN_OF)
        mean_codes, mean_scales = _round_to_4_bits(left.reshape(rows, -1))
    mean_blocks = mean_scales.shape[1]
    middle = np.full((rows, mean_blocks), _MIDDLE, np.uint8)
    zero_points = points.astype(np.uint8).reshape(rows, -1)
    return BlockQuantized.from_codes(
        np.concatenate([codes.reshape(rows, -1, MEAN_OF), mean_codes], axis=1),
        np.concatenate([source.step.reshape(rows, -1), mean_scales], axis=1),
        bits=4,
        zero_points=np.concatenate([zero_points, middle], axis=1),
        mean_blocks=mean_blocks,
    )


def _round_to_4_bits(
    values: NDArray[np.float32],
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Round [N, n] around a middle: codes uint8 [N, ceil(n / 32), 32] and scales [N, ceil(n / 32)].

    The scale is refitted by least squares after rounding; a last block is filled up with zeros.
    """
    rows, count = values.shape
    blocks = -(-count // MEAN_OF)
    padded = np.zeros((rows, blocks * MEAN_OF), np.float32)
    padded[:, :count] = values
    padded = padded.reshape(rows, blocks, MEAN_OF)
    # -8 is a code and 8 is none: half a code of clipping at one end buys finer steps for the rest.
    scale = np.abs(padded).max(axis=-1, keepdims=True) / np.float32(_MIDDLE - 0.5)
    scale = np.where(scale == 0, np.float32(1), scale)
    steps = np.clip(np.rint(padded / scale), -_MIDDLE, _HIGHEST - _MIDDLE)
    squares = (steps * steps).sum(axis=-1)
    fitted = np.where(squares > 0, (steps * padded).sum(axis=-1) / squares, scale[..., 0])
    steps = np.where(np.isfinite(steps), steps, 0)
    return (steps + _MIDDLE).astype(np.uint8), fitted.astype(np.float32)
