"""How far one model's predictions are from another's, token by token.

Works on arrays of logits and knows no model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Divergence:
    """Averages over tokens.

    ``kl`` is the mean of KL(reference || candidate) in nats a token, ``kl_99`` its 99th percentile,
    ``top_1`` the fraction of tokens where both think the same token likeliest. ``perplexity`` and
    ``reference_perplexity`` are on the text itself; NaN where no token is known to have followed.
    """

    tokens: int
    kl: float
    kl_99: float
    top_1: float
    perplexity: float
    reference_perplexity: float


@dataclass(frozen=True)
class TokenDivergences:
    """One value a predicted token: float64 (N), float64 (N), bool (N).

    ``nll`` are negative log-likelihoods of the tokens that came next, NaN where none did.
    """

    kl: F64
    same_top: NDArray[np.bool_]
    nll: F64
    reference_nll: F64


def compare(reference: F32, candidate: F32, next_ids: NDArray[np.int64]) -> TokenDivergences:
    """Compare logits row by row.

    Args:
        reference: float32 (N, V).
        candidate: float32 (N, V).
        next_ids: int64 (N), the tokens that came next; -1 where none did.

    Raises:
        ValueError: shapes differ.
    """
    if reference.shape != candidate.shape or len(next_ids) != len(reference):
        raise ValueError(f"shapes {reference.shape}, {candidate.shape}, {next_ids.shape}")
    same_top = reference.argmax(axis=-1) == candidate.argmax(axis=-1)
    p, q = log_softmax(reference), log_softmax(candidate)
    rows = np.arange(len(next_ids))
    known = next_ids >= 0
    nll = np.where(known, -q[rows, next_ids], np.nan).astype(np.float64)
    reference_nll = np.where(known, -p[rows, next_ids], np.nan).astype(np.float64)
    q -= p
    np.exp(p, out=p)
    # p = 0 where q underflows to -inf would give 0 * inf; such a token adds nothing.
    np.multiply(p, q, out=q, where=p > 0)
    kl = -np.sum(q, axis=-1, dtype=np.float64, where=p > 0)
    return TokenDivergences(np.maximum(kl, 0.0), same_top, nll, reference_nll)


def summarize(parts: Iterable[TokenDivergences]) -> Divergence:
    """Averages over all tokens of all parts."""
    collected = list(parts)
    kl = np.concatenate([p.kl for p in collected])
    return Divergence(
        tokens=len(kl),
        kl=float(kl.mean()),
        kl_99=float(np.percentile(kl, 99)),
        top_1=float(np.concatenate([p.same_top for p in collected]).mean()),
        perplexity=_perplexity(p.nll for p in collected),
        reference_perplexity=_perplexity(p.reference_nll for p in collected),
    )


def _perplexity(parts: Iterable[F64]) -> float:
    nll = np.concatenate(list(parts))
    known = nll[~np.isnan(nll)]
    return float(np.exp(known.mean())) if len(known) else math.nan


def log_softmax(logits: F32) -> F32:
    """Natural-log probabilities of float32 (N, V), in a new array."""
    shifted: F32 = logits - logits.max(axis=-1, keepdims=True)
    total = np.exp(shifted).sum(axis=-1, keepdims=True, dtype=np.float64)
    shifted -= np.log(total).astype(np.float32)
    return shifted
