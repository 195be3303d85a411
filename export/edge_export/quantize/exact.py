"""Carry quantized GGUF kinds into MatMulNBits blocks bit for bit.

A kind qualifies when a value is an integer times a scale, with no float minimum: the scale (a
float16, or the float32 product that the source's own decoder forms) goes over as float32, and the
integer moves by a constant so that the default zero point is right. Knows no files and rounds
nothing. Layouts are those of ggml's quantized blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_export.quantize.blocks import BlockQuantized

# codes [M, block_size] around the middle of their bits, scales [M, n] for M source blocks.
_Decoded = tuple[NDArray[np.uint8], NDArray[np.float32]]


def low_then_high_nibbles(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """ggml's order: the low halves of all bytes, then the high halves; uint8 [..., 2 n]."""
    return np.concatenate([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1)


def bits_as_codes(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The bits of bytes, lowest first, one a byte; uint8 [..., 8 n]."""
    return np.unpackbits(packed, axis=-1, bitorder="little")


def half_floats(stored: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Pairs of bytes as little-endian float16: float32 [..., n / 2]."""
    return np.ascontiguousarray(stored).view("<f2").astype(np.float32)


def _q4_0(blocks: NDArray[np.uint8]) -> _Decoded:
    # float16 scale, 16 bytes of nibbles; the value is (code - 8) * scale.
    return low_then_high_nibbles(blocks[:, 2:]), half_floats(blocks[:, :2])


def _q5_0(blocks: NDArray[np.uint8]) -> _Decoded:
    # float16 scale, 32 fifth bits, 16 bytes of nibbles; the value is (code - 16) * scale.
    codes = low_then_high_nibbles(blocks[:, 6:])
    codes |= bits_as_codes(blocks[:, 2:6]) << np.uint8(4)
    codes += np.uint8(128 - 16)
    return codes, half_floats(blocks[:, :2])


def _q8_0(blocks: NDArray[np.uint8]) -> _Decoded:
    # float16 scale, 32 int8; flipping the sign bit adds 128 to an int8.
    return blocks[:, 2:] ^ np.uint8(0x80), half_floats(blocks[:, :2])


def _q6_k(blocks: NDArray[np.uint8]) -> _Decoded:
    # 128 bytes of low nibbles, 64 of high bit pairs, 16 int8 scales, a float16 scale of scales.
    # Each half of 128 values takes 64 and 32 bytes; its four quarters of 32 values are the low
    # nibbles of bytes 0-31 and 32-63, then their high nibbles, with bit pairs 0, 2, 4, 6.
    count = len(blocks)
    low = blocks[:, :128].reshape(count, 2, 64)
    high = blocks[:, 128:192].reshape(count, 2, 1, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    codes = low_then_high_nibbles(low).reshape(count, 2, 4, 32)
    codes |= (high >> shifts & np.uint8(3)) << np.uint8(4)
    codes += np.uint8(128 - 32)
    scales = half_floats(blocks[:, 208:]) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return codes.reshape(count, 256), scales


@dataclass(frozen=True)
class _ExactKind:
    bits: int
    block_size: int  # values that share a scale
    source_bytes: int  # bytes of one source block
    decode: Callable[[NDArray[np.uint8]], _Decoded]


_KINDS: Mapping[str, _ExactKind] = {
    "Q4_0": _ExactKind(4, 32, 18, _q4_0),
    "Q5_0": _ExactKind(8, 32, 22, _q5_0),
    "Q8_0": _ExactKind(8, 32, 34, _q8_0),
    "Q6_K": _ExactKind(8, 16, 210, _q6_k),
}

EXACT_BITS: Mapping[str, int] = {kind: how.bits for kind, how in _KINDS.items()}
"""The kinds that carry exactly, and the fewest bits that hold each."""


def carry_exactly(raw: NDArray[np.uint8], kind: str) -> BlockQuantized:
    """Carry rows of one of :data:`EXACT_BITS`.

    Args:
        raw: uint8 [N, bytes per row], the source's own bytes.
        kind: the ggml name of the kind.

    Returns:
        Blocks without zero points whose ``dequantize()`` equals the source's decoder bit for bit,
        but for the sign of zeros.

    Raises:
        KeyError: the kind does not carry exactly.
    """
    how = _KINDS[kind]
    rows = len(raw)
    # A source's scale may be damaged to an infinity; the caller checks scales, not numpy.
    with np.errstate(all="ignore"):
        codes, scales = how.decode(raw.reshape(-1, how.source_bytes))
    return BlockQuantized.from_codes(
        codes.reshape(rows, -1, how.block_size), scales.reshape(rows, -1), bits=how.bits
    )
