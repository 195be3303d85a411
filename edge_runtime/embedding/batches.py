"""Groups texts of similar length, so that little of a batch is padding.

Knows lengths alone.
"""

from __future__ import annotations

from collections.abc import Sequence


def group_by_length(
    lengths: Sequence[int], *, most_tokens: int, most_waste: float
) -> list[list[int]]:
    """Batches of texts, longest first.

    In each batch every row is padded to its longest. A text joins the batch before it while the
    batch then holds at most ``most_tokens``, padding included, and at most the share ``most_waste``
    of them is padding. A text longer than ``most_tokens`` has a batch of its own.

    Args:
        lengths: tokens of each text.
        most_tokens: rows times longest of a batch.
        most_waste: padding over all tokens of a batch, 0 to 1.

    Returns:
        Indices into ``lengths``: each once.
    """
    batches: list[list[int]] = []
    held = 0  # real tokens of the last batch
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batches:
            padded = lengths[batches[-1][0]] * (len(batches[-1]) + 1)
            fits = padded <= most_tokens
            if fits and padded - held - lengths[index] <= most_waste * padded:
                batches[-1].append(index)
                held += lengths[index]
                continue
        batches.append([index])
        held = lengths[index]
    return batches
