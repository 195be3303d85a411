"""How far a bundle's predictions are from those of its source's own weights in float32.

The source is computed layer by layer with numpy, so that one layer is in memory and no graph of
ours has a part in it; the bundle is read by the runtime's runner, in chunks through its cache. The
text is one that no recipe has seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_export.architectures.registry import read_spec
from edge_export.architectures.spec import DecoderSpec
from edge_export.quantize.calibration import Walk
from edge_export.quantize.calibration_text import unseen_tokens
from edge_export.source_weights import SourceWeights
from edge_export.sources.source_model import open_source
from edge_export.validate import bundle_logits
from edge_runtime.bundle import TOKENIZER_NAME, read_manifest

F32 = NDArray[np.float32]

_MOST_TOKENS = 256
_LOGITS_BYTES = 200_000_000  # of both sides together
_HEAD_ROWS = 4096
# Where the source's two likeliest tokens are nearer, in nats, either may win by rounding.
_NEAR_TIE = 0.1


@dataclass(frozen=True)
class ParityReport:
    """Averages over tokens, the source in float32 being the reference.

    Attributes:
        tokens: predictions compared.
        max_difference: the largest difference of two logits, over the largest logit.
        cosine: of the logits of a token, on average.
        kl: KL(source || bundle) in nats a token.
        argmax_agreement: the share of tokens where both think the same token likeliest.
        near_ties: tokens where the source itself is all but undecided.
        clear_agreement: ``argmax_agreement`` of all others; 1 where there are none.
    """

    tokens: int
    max_difference: float
    cosine: float
    kl: float
    argmax_agreement: float
    near_ties: int
    clear_agreement: float


def compare_logits(reference: F32, found: F32) -> ParityReport:
    """Compare logits, float32 (T, V) each, row by row."""
    ordered = np.sort(np.partition(reference, -2, axis=-1)[:, -2:], axis=-1)
    ties = ordered[:, 1] - ordered[:, 0] < _NEAR_TIE
    same = reference.argmax(axis=-1) == found.argmax(axis=-1)
    lengths = np.linalg.norm(reference, axis=-1) * np.linalg.norm(found, axis=-1)
    cosine = np.einsum("tv,tv->t", reference, found) / np.maximum(lengths, 1e-30)
    kl = [_divergence(p, q) for p, q in zip(reference, found, strict=True)]
    return ParityReport(
        tokens=len(reference),
        max_difference=float(np.abs(reference - found).max() / np.abs(reference).max()),
        cosine=float(cosine.mean()),
        kl=float(np.mean(kl)),
        argmax_agreement=float(same.mean()),
        near_ties=int(ties.sum()),
        clear_agreement=1.0 if ties.all() else float(same[~ties].mean()),
    )


def verify(
    bundle: Path, source: Path, on_layer: Callable[[int, int], None] | None = None
) -> ParityReport:
    """Compare a bundle with the source it was made from.

    Args:
        bundle: its directory.
        source: the file or directory.
        on_layer: called with the number of layers done, and of all.

    Raises:
        ExportError: the source cannot be read, or the bundle does not run.
        ProviderError: there is no usable onnxruntime.
    """
    manifest = read_manifest(bundle)
    with open_source(source).checkpoint as checkpoint:
        spec = read_spec(checkpoint, manifest.dimensions.context_length)
        count = min(
            spec.context_length,
            max(16, min(_MOST_TOKENS, _LOGITS_BYTES // (8 * spec.vocabulary_size))),
        )
        tokens = unseen_tokens(
            (bundle / TOKENIZER_NAME).read_text(encoding="utf-8"),
            begin_token_id=manifest.tokenizer.bos_token_id if manifest.tokenizer.add_bos else None,
            count=count,
        )
        weights = SourceWeights(spec, checkpoint)
        reference = source_logits(
            spec, weights, tokens, lambda done: on_layer(done, spec.layers) if on_layer else None
        )
    return compare_logits(reference, bundle_logits(bundle, manifest, tokens))


def source_logits(
    spec: DecoderSpec,
    weights: SourceWeights,
    tokens: NDArray[np.int64],
    on_layer: Callable[[int], None],
) -> F32:
    """Logits after each token by the source's own weights, float32 (T, V).

    Args:
        spec: the decoder.
        weights: the source's.
        tokens: int64 (T,), read from position 0.
        on_layer: called with the number of layers done.
    """
    walk = Walk(spec, weights, weights.embed(tokens), [len(tokens)])
    walk.finish_exactly(on_layer)
    states = walk.x * np.float32(spec.logits_scale)
    head, bias = weights.tensor("head"), weights.bias("head")
    logits = np.empty((len(tokens), head.row_count), np.float32)
    for start in range(0, head.row_count, _HEAD_ROWS):
        stop = min(start + _HEAD_ROWS, head.row_count)
        np.matmul(states, head.rows(start, stop).T, out=logits[:, start:stop])
        head.release()
    if bias is not None:
        logits += bias
    if spec.logits_softcap is not None:
        cap = np.float32(spec.logits_softcap)
        np.tanh(np.divide(logits, cap, out=logits), out=logits)
        logits *= cap
    return logits


def _divergence(reference: F32, found: F32) -> float:
    """KL(reference || found) in nats, of logits (V,)."""
    p, q = (_log_softmax(row.astype(np.float64)) for row in (reference, found))
    return max(0.0, float(np.sum(np.exp(p) * (p - q))))


def _log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = logits - logits.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))
