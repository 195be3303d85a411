"""What the engine asks of a constraint: which tokens may come next, and whether it may end.

Masks are packed, one bit a token, so that a vocabulary of 256k costs 32 KiB. Knows no grammar, no
text and no engine; :mod:`edge_runtime.guidance.llguidance_constraint` makes constraints of
grammars.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.uint32]
"""(ceil(V / 32),) uint32; bit ``i % 32`` of word ``i // 32`` says whether token ``i`` may come."""

_BITS = 32


class TokenConstraint(Protocol):
    """Follows one answer token by token. Used by one sequence, and by one thread at a time."""

    def allowed_tokens(self) -> Mask | None:
        """Which tokens may come next; None where any may.

        The model's end tokens are in it where the answer may end here.

        Raises:
            GrammarError: nothing can come, or finding out what can costs too much.
        """

    def accept(self, token_id: int) -> None:
        """Go on to the state after this token, which was one of :meth:`allowed_tokens`.

        Raises:
            GrammarError: it was not.
        """

    @property
    def is_complete(self) -> bool:
        """Whether nothing but the end can come: the engine ends the answer without asking."""


def mask_of(token_ids: Iterable[int], vocabulary_size: int) -> Mask:
    """The mask that allows these tokens and no others."""
    mask = np.zeros(-(-vocabulary_size // _BITS), np.uint32)
    for token in token_ids:
        mask[token // _BITS] |= np.uint32(1) << np.uint32(token % _BITS)
    return mask


def unpacked(mask: Mask, vocabulary_size: int) -> NDArray[np.bool_]:
    """(V,) whether each token is allowed; tokens past the mask's end are not."""
    in_order = mask.astype("<u4", copy=False).view(np.uint8)
    bits = np.unpackbits(in_order, count=min(vocabulary_size, 8 * in_order.size), bitorder="little")
    if bits.size < vocabulary_size:
        bits = np.concatenate([bits, np.zeros(vocabulary_size - bits.size, np.uint8)])
    return bits.view(np.bool_)
