"""What the inputs of each linear layer look like on a text: their second moments.

Follows the decoder in the order of the graph. Each layer's inputs come from the layers already
quantized, and a second stream of states, through the source's own weights, says what the layer
ought to have seen, so that later layers make up for what earlier ones lost. One layer's weights are
in memory at a time. A table that embedding and head share is needed before any layer: for it the
unquantized decoder is run to its end first. Knows no rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_export.architectures.spec import DecoderSpec
from edge_export.quantize.activations import HiddenStates, Linear, inner
from edge_export.quantize.blocks import BlockQuantized
from edge_export.source_weights import SourceWeights

F32 = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Moments:
    """Moments of a linear layer's input x over a text.

    Attributes:
        second: float32 [K, K], the sum of ``x x^T``.
        drift: float32 [K, K], the sum of ``(y - x) x^T``, where y is what the layer of the
            unquantized decoder sees at the same token; None where that is x.
        tokens: how many are summed.
    """

    second: F32
    drift: F32 | None
    tokens: int

    @property
    def importance(self) -> F32:
        """The sum of squares of each column, float32 [K]."""
        return np.ascontiguousarray(np.diagonal(self.second))


@dataclass(frozen=True, eq=False)
class ColumnWeights:
    """What is known of an input that is too wide for its :class:`Moments`.

    Attributes:
        importance: the sum of squares of each column, float32 [K].
    """

    importance: F32


class Calibration:
    """Walks the decoder as its matrices are quantized.

    For each matrix in the order of the graph ask for :meth:`moments`, if wanted, then give the
    quantized matrix to :meth:`accept`.

    Args:
        spec: the decoder.
        source: its weights.
        windows: int64 token ids (tokens,), each read from position 0.
        widest: of wider inputs only the sums of squares are kept: moments grow with the square
            of the width. None sets no bound.
        on_layer: called with the number of layers done by the first, unquantized pass.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        source: SourceWeights,
        windows: Sequence[NDArray[np.int64]],
        *,
        widest: int | None = None,
        on_layer: Callable[[int], None],
    ) -> None:
        self._spec = spec
        self._source = source
        self._windows = windows
        self._widest = widest
        self._on_layer = on_layer
        self._walks: tuple[Walk, Walk] | None = None  # quantized, as the source is
        self._moments: Moments | ColumnWeights | None = None
        self._held: dict[str, Linear] = {}

    def moments(self, role: str) -> Moments | ColumnWeights | None:
        """Moments of the input of the matrix that comes next.

        Args:
            role: the matrix's. For an embedding they are those of the head that shares its table,
                and None if none does.
        """
        if role == "embedding":
            return self._final_moments() if self._spec.tied_head else None
        assert self._walks is not None, "the embedding comes first"
        if self._moments is None:
            x, y = (walk.x for walk in self._walks)
            self._moments = self._of(x, y)
        return self._moments

    def accept(self, role: str, layer: int | None, blocks: BlockQuantized) -> None:
        """Go on with a matrix as it became, (out, in), rows in rotary halves."""
        if role == "embedding":
            self._begin(blocks)
        if layer is None:
            return
        assert self._walks is not None, "the embedding comes first"
        self._held[role] = Linear(blocks.dequantize(), self._source.bias(role, layer))
        group = next(g for g in groups(self._spec) if role in g)
        if role != group[-1]:
            return
        quantized, exact = self._walks
        quantized.step(layer, group, self._held)
        self._held = {}
        exact.step_exactly(layer, group)
        self._moments = None

    def _begin(self, table: BlockQuantized) -> None:
        wanted, where = np.unique(np.concatenate(self._windows), return_inverse=True)
        embedded = table.permute_rows(wanted).dequantize()[where]
        self._walks = self._walk(embedded), self._walk(None)

    def _of(self, x: F32, y: F32 | None) -> Moments | ColumnWeights:
        with np.errstate(all="ignore"):  # whoever uses them looks whether they are finite
            if self._widest is not None and x.shape[1] > self._widest:
                return ColumnWeights(np.einsum("tk,tk->k", x, x))
            return Moments(x.T @ x, None if y is None else (y - x).T @ x, len(x))

    def _final_moments(self) -> Moments | ColumnWeights:
        walk = self._walk(None)
        walk.finish_exactly(self._on_layer)
        return self._of(walk.x, None)

    def _walk(self, embedded: F32 | None) -> Walk:
        """From given embeddings, or from the source's."""
        if embedded is None:
            embedded = self._source.embed(np.concatenate(self._windows))
        return Walk(self._spec, self._source, embedded, [len(w) for w in self._windows])


class Walk:
    """States on their way through the decoder; ``x`` is what the next linears multiply.

    Args:
        spec: the decoder.
        source: its weights.
        embedded: float32 (T, hidden), the embeddings of all texts' tokens.
        lengths: tokens of each text; their sum is T.
    """

    def __init__(
        self, spec: DecoderSpec, source: SourceWeights, embedded: F32, lengths: Sequence[int]
    ) -> None:
        self._spec = spec
        self._source = source
        self._states = HiddenStates(spec, source, embedded, lengths)
        self.x = self._states.read("attention_norm", 0)

    def step(self, layer: int, group: Sequence[str], linears: dict[str, Linear]) -> None:
        """Apply the linears that read ``x``, and go on to the next linears' input."""
        states, first = self._states, linears[group[0]]
        with np.errstate(all="ignore"):  # a damaged file's numbers may overflow
            if group[0] == "query":
                self.x = states.attend(layer, self.x, first, linears["key"], linears["value"])
            elif group[0] == "attention_output":
                states.write(first(self.x), "attention_post_norm", layer)
                self.x = states.read("feed_forward_norm", layer)
            elif group[-1] == "up":
                self.x = inner(self._spec, self.x, linears.get("gate"), linears["up"])
            else:
                states.write(first(self.x), "feed_forward_post_norm", layer)
                last = layer == self._spec.layers - 1
                self.x = (
                    states.read("final_norm", None)
                    if last
                    else states.read("attention_norm", layer + 1)
                )

    def step_exactly(self, layer: int, group: Sequence[str]) -> None:
        """:meth:`step` with the source's own weights."""
        source = self._source
        linears = {r: Linear(source.matrix(r, layer), source.bias(r, layer)) for r in group}
        self.step(layer, group, linears)

    def finish_exactly(self, on_layer: Callable[[int], None]) -> None:
        """All layers with the source's own weights; ``x`` is then what the head multiplies."""
        for layer in range(self._spec.layers):
            for group in groups(self._spec):
                self.step_exactly(layer, group)
            on_layer(layer + 1)


def groups(spec: DecoderSpec) -> tuple[tuple[str, ...], ...]:
    """Linears that read the same input, in the order of the graph."""
    first = ("gate", "up") if spec.gated else ("up",)
    return (("query", "key", "value"), ("attention_output",), first, ("down",))
