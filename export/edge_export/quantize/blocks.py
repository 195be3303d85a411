"""Weights in the layout of onnxruntime's MatMulNBits and GatherBlockQuantized.

A row of K values is cut in blocks; a value is ``(code - zero_point) * scale``, the codes are 4 or
8 bits, and each block has its own scale and, where it is not the middle ``2^(bits-1)``, its own
integral zero point. Knows nothing of where the numbers came from. K must be a multiple of the
block: the operators allow a padded last block, but a table shared by embedding and head does not,
and no model that people run needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_ROWS_AT_ONCE_VALUES = 1 << 20
MEAN_OF = 32
"""Inputs whose mean one column of a block of means multiplies; the block size that goes with it."""


@dataclass(frozen=True, eq=False)
class BlockQuantized:
    """A matrix [N, K] of quantized rows.

    Attributes:
        bits: 4 or 8.
        block_size: values that share a scale: a power of two from 16 to 256.
        values: uint8 [N, K / block_size, block_size * bits / 8]; of two 4-bit codes in a byte the
            first is the low one.
        scales: float32 [N, K / block_size].
        zero_points: uint8 [N, ceil(K / block_size * bits / 8)], packed like the values; None means
            2^(bits-1) for every block.
        mean_blocks: how many of the blocks, the last ones, multiply not the inputs but their means:
            the mean of inputs 32 i to 32 i + 31 is one more input. They hold what an integral zero
            point leaves of a block's own offset (:mod:`edge_export.quantize.block_means`). K above
            then counts all blocks.
    """

    bits: int
    block_size: int
    values: NDArray[np.uint8]
    scales: NDArray[np.float32]
    zero_points: NDArray[np.uint8] | None = None
    mean_blocks: int = 0

    def __post_init__(self) -> None:
        if self.bits not in (4, 8):
            raise ValueError(f"bits is {self.bits}, not 4 or 8")
        if self.block_size not in (16, 32, 64, 128, 256):
            raise ValueError(f"block_size is {self.block_size}, not a power of two from 16 to 256")
        if self.values.dtype != np.uint8 or self.scales.dtype != np.float32:
            raise ValueError(f"values are {self.values.dtype} and scales {self.scales.dtype}")
        rows, blocks = self.scales.shape
        expected = (rows, blocks, self.block_size * self.bits // 8)
        if self.values.shape != expected:
            raise ValueError(f"values are {self.values.shape}, not {expected}")
        if self.zero_points is not None:
            expected_points = (rows, -(-blocks * self.bits // 8))
            if self.zero_points.dtype != np.uint8 or self.zero_points.shape != expected_points:
                raise ValueError(
                    f"zero_points are {self.zero_points.dtype} {self.zero_points.shape}, "
                    f"not uint8 {expected_points}"
                )

    @classmethod
    def from_codes(
        cls,
        codes: NDArray[np.uint8],
        scales: NDArray[np.float32],
        *,
        bits: int,
        zero_points: NDArray[np.uint8] | None = None,
        mean_blocks: int = 0,
    ) -> BlockQuantized:
        """Pack codes.

        Args:
            codes: uint8 [N, blocks, block_size], each below 2^bits.
            scales: float32 [N, blocks].
            bits: 4 or 8.
            zero_points: uint8 [N, blocks], one a block and not packed, or None for 2^(bits-1).
            mean_blocks: how many of the last blocks multiply means.
        """
        return cls(
            bits=bits,
            block_size=codes.shape[2],
            values=_pack(codes, bits),
            scales=scales,
            zero_points=None if zero_points is None else _pack(zero_points, bits),
            mean_blocks=mean_blocks,
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Of the matrix that the blocks stand for: blocks of means have no columns in it."""
        rows, blocks = self.scales.shape
        return rows, (blocks - self.mean_blocks) * self.block_size

    @property
    def nbytes(self) -> int:
        """Bytes of values, scales and zero points together."""
        points = 0 if self.zero_points is None else self.zero_points.nbytes
        return self.values.nbytes + self.scales.nbytes + points

    @property
    def stored_as(self) -> str:
        """How a report names it, such as ``8-bit block 32``."""
        kind = "" if self.zero_points is None else " with zero points"
        if self.mean_blocks:
            kind += " and offsets"
        return f"{self.bits}-bit block {self.block_size}{kind}"

    def codes(self) -> NDArray[np.uint8]:
        """The codes, one a byte: uint8 [N, blocks, block_size]."""
        return _unpack(self.values, self.bits, self.block_size)

    def block_zero_points(self) -> NDArray[np.uint8]:
        """The zero points, one a block: uint8 [N, blocks]; the default is written out."""
        if self.zero_points is None:
            return np.full(self.scales.shape, 1 << (self.bits - 1), np.uint8)
        return _unpack(self.zero_points, self.bits, self.scales.shape[1])

    def dequantize(self) -> NDArray[np.float32]:
        """The values that the operators compute with: float32 [N, K]."""
        points = self.block_zero_points().astype(np.int16)[..., np.newaxis]
        result = np.empty((*self.scales.shape, self.block_size), np.float32)
        step = max(1, _ROWS_AT_ONCE_VALUES // max(1, self.shape[1]))
        for start in range(0, self.shape[0], step):
            part = slice(start, start + step)
            codes = _unpack(self.values[part], self.bits, self.block_size)
            steps = codes.astype(np.int16) - points[part]
            np.multiply(steps, self.scales[part, :, np.newaxis], out=result[part])
        if not self.mean_blocks:
            return result.reshape(self.shape)
        blocks = self.shape[1] // MEAN_OF
        offsets = result[:, blocks:].reshape(len(result), -1)[:, :blocks]
        matrix = result[:, :blocks]
        matrix += offsets[..., np.newaxis] / np.float32(MEAN_OF)
        return matrix.reshape(self.shape)

    def permute_rows(self, index: NDArray[np.integer]) -> BlockQuantized:
        """The rows in another order: row i of the result is row ``index[i]`` of this one."""
        return BlockQuantized(
            bits=self.bits,
            block_size=self.block_size,
            values=self.values[index],
            scales=self.scales[index],
            zero_points=None if self.zero_points is None else self.zero_points[index],
            mean_blocks=self.mean_blocks,
        )

    def with_block_size(self, block_size: int) -> BlockQuantized:
        """The same values in smaller blocks, exactly.

        Raises:
            ValueError: ``block_size`` does not divide the present one.
        """
        times, rest = divmod(self.block_size, block_size)
        if rest or (self.mean_blocks and times > 1):
            raise ValueError(f"blocks of {self.block_size} cannot be cut in blocks of {block_size}")
        if times == 1:
            return self
        rows, blocks = self.scales.shape
        points = None
        if self.zero_points is not None:
            points = _pack(self.block_zero_points().repeat(times, axis=1), self.bits)
        return BlockQuantized(
            bits=self.bits,
            block_size=block_size,
            values=self.values.reshape(rows, blocks * times, -1),
            scales=self.scales.repeat(times, axis=1),
            zero_points=points,
        )

    def in_8_bits(self) -> BlockQuantized:
        """The same values in 8-bit codes, exactly."""
        if self.bits == 8:
            return self
        if self.mean_blocks:
            raise ValueError("blocks with offsets are 4-bit blocks of their own kind")
        # Moving codes and zero points alike keeps the default zero point a default.
        shift = np.uint8(128 - 8)
        points = None if self.zero_points is None else self.block_zero_points() + shift
        return BlockQuantized.from_codes(
            self.codes() + shift, self.scales, bits=8, zero_points=points
        )


def concatenate(parts: Sequence[BlockQuantized]) -> BlockQuantized:
    """Stack matrices of one width along their rows, exactly.

    Parts that differ are brought to what holds all of them: the most bits, the smallest block, and
    zero points written out where any part has them.

    Raises:
        ValueError: no parts, or parts of different widths, or some with offsets and some without.
    """
    if not parts:
        raise ValueError("nothing to concatenate")
    if len({part.mean_blocks for part in parts}) > 1:
        raise ValueError("some parts have offsets and some have none")
    widths = {part.shape[1] for part in parts}
    if len(widths) > 1:
        raise ValueError(f"rows of different widths: {sorted(widths)}")
    if any(part.bits == 8 for part in parts):
        parts = [part.in_8_bits() for part in parts]
    block_size = min(part.block_size for part in parts)
    parts = [part.with_block_size(block_size) for part in parts]
    bits = parts[0].bits
    points = None
    if any(part.zero_points is not None for part in parts):
        points = np.concatenate([_pack(part.block_zero_points(), bits) for part in parts])
    return BlockQuantized(
        bits=bits,
        block_size=block_size,
        values=np.concatenate([part.values for part in parts]),
        scales=np.concatenate([part.scales for part in parts]),
        zero_points=points,
        mean_blocks=parts[0].mean_blocks,
    )


def _pack(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Pack the last axis; an odd last 4-bit code leaves the high half of its byte zero."""
    if bits == 8:
        return codes
    packed: NDArray[np.uint8] = codes[..., 0::2].copy()
    high = codes[..., 1::2]
    packed[..., : high.shape[-1]] |= high << np.uint8(4)
    return packed


def _unpack(packed: NDArray[np.uint8], bits: int, count: int) -> NDArray[np.uint8]:
    if bits == 8:
        return packed
    codes = np.empty((*packed.shape[:-1], 2 * packed.shape[-1]), np.uint8)
    np.bitwise_and(packed, np.uint8(15), out=codes[..., 0::2])
    np.right_shift(packed, np.uint8(4), out=codes[..., 1::2])
    return codes[..., :count]
