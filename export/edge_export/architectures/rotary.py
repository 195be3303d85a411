"""Kinds of rotary position embedding, from what checkpoints say of them.

A kind becomes frequencies that are the same at every step, so that tokens in the cache stay valid
whatever comes after them. Where a kind's frequencies depend on the length of the text (dynamic,
longrope), the context that the export is made for decides. Sources: Su et al. 2021; position
interpolation, Chen et al. 2023; dynamic scaling and YaRN, Peng et al. 2023; LongRoPE, Ding et al.
2024; Llama 3's scaling, as its model card publishes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_export.architectures.spec import RotarySpec
from edge_export.architectures.values import Values
from edge_runtime.errors import SourceFormatError, UnsupportedModelError

F64 = NDArray[np.float64]

# The attention operator rotates eight pairs at a time.
GRANULARITY = 16
# YaRN's own constants: rotations over the original context beyond which a frequency is kept, and
# below which it is interpolated.
YARN_BETA_FAST, YARN_BETA_SLOW = 32.0, 1.0


@dataclass(frozen=True, eq=False)
class Positions:
    """Rotary frequencies, and how many tokens they are good for."""

    rotary: RotarySpec
    context_length: int


def plain_frequencies(base: float, dimensions: int) -> F64:
    """``base ** (-2 i / dimensions)``, float64 (dimensions / 2,).

    Raises:
        SourceFormatError: an odd number of dimensions, or none.
        UnsupportedModelError: a number that the operator cannot rotate.
    """
    if dimensions < 2 or dimensions % 2:
        raise SourceFormatError(f"{dimensions} dimensions cannot rotate in pairs")
    if dimensions % GRANULARITY:
        raise UnsupportedModelError(
            f"{dimensions} rotating dimensions are not a multiple of {GRANULARITY}"
        )
    return np.asarray(base ** (-np.arange(0, dimensions, 2, dtype=np.float64) / dimensions))


def positions_from_config(
    parameters: Values, *, base: float, dimensions: int, own_context: int, asked: int | None
) -> Positions:
    """What config.json's ``rope_parameters`` (or ``rope_scaling``) describe.

    Args:
        parameters: that object; empty for no scaling.
        base: rope_theta.
        dimensions: of a head, that rotate.
        own_context: max_position_embeddings.
        asked: tokens that the export is made for; None takes the model's own, and of longrope
            and dynamic scaling the original ones.

    Raises:
        SourceFormatError: nonsense numbers.
        UnsupportedModelError: a kind that is not known, or more tokens asked for than it reaches.
    """
    kind = parameters.text("rope_type", default=parameters.text("type", default="default"))
    frequencies = plain_frequencies(base, dimensions)
    context = reach = own_context
    magnitude = 1.0
    if kind == "linear":
        frequencies = frequencies / parameters.number("factor")
    elif kind == "llama3":
        frequencies = _llama3(frequencies, parameters)
    elif kind == "dynamic":
        factor = parameters.number("factor")
        reach = max(own_context, int(own_context * factor))
        stretch = factor * max(asked or 0, own_context) / own_context - (factor - 1)
        frequencies = plain_frequencies(
            base * stretch ** (dimensions / (dimensions - 2)), dimensions
        )
    elif kind == "yarn":
        original = parameters.integer("original_max_position_embeddings", default=own_context)
        factor = parameters.number("factor", default=own_context / original)
        context = reach = max(own_context, int(original * factor))
        fast = parameters.number("beta_fast", default=YARN_BETA_FAST)
        slow = parameters.number("beta_slow", default=YARN_BETA_SLOW)
        whole = parameters.flag("truncate", default=True)
        frequencies = yarn(frequencies, base, factor, original, fast=fast, slow=slow, whole=whole)
        magnitude = _yarn_magnitude(parameters, factor)
    elif kind in ("longrope", "su"):
        original = parameters.integer("original_max_position_embeddings", default=own_context)
        context = min(original, own_context)
        which = "long_factor" if asked is not None and asked > original else "short_factor"
        frequencies = frequencies / parameters.numbers(which, length=len(frequencies))
        magnitude = parameters.number(
            "attention_factor",
            default=longrope_magnitude(
                parameters.number("factor", default=own_context / original), original
            ),
        )
    elif kind != "default":
        raise UnsupportedModelError(
            f"rotary scaling {kind!r:.40} is not known",
            hint="known: default, linear, dynamic, llama3, yarn, longrope",
        )
    if asked is not None and asked > reach:
        raise UnsupportedModelError(
            f"a context of {asked} tokens was asked for, and the model reaches {reach}"
        )
    return Positions(RotarySpec(frequencies, magnitude), asked or context)


def yarn(
    frequencies: F64,
    base: float,
    factor: float,
    original_context: int,
    *,
    fast: float = YARN_BETA_FAST,
    slow: float = YARN_BETA_SLOW,
    whole: bool = True,
) -> F64:
    """Interpolate low frequencies, keep high ones, blend between (YaRN, section 3.2).

    Args:
        frequencies: float64 (dimensions / 2,), unscaled.
        base: rope_theta.
        factor: by which the context grows.
        original_context: tokens the model was first trained on.
        fast, slow: rotations over the original context at the ends of the blend.
        whole: end the blend at whole frequencies.

    Raises:
        SourceFormatError: a base that has no logarithm to divide by.
    """
    if base <= 1:
        raise SourceFormatError(f"the rotary base is {base}")
    dimensions = 2 * len(frequencies)

    def index_of(rotations: float) -> float:
        turns = original_context / (rotations * 2 * math.pi)
        return dimensions * math.log(turns) / (2 * math.log(base))

    first, last = index_of(fast), index_of(slow)
    if whole:
        first, last = math.floor(first), math.ceil(last)
    low, high = max(first, 0), min(last, dimensions - 1)
    steps = (np.arange(len(frequencies)) - low) / max(high - low, 0.001)
    interpolated = np.clip(steps, 0.0, 1.0)
    return np.asarray(frequencies / factor * interpolated + frequencies * (1.0 - interpolated))


def longrope_magnitude(factor: float, original_context: int) -> float:
    """What cos and sin are multiplied by where the context grew by ``factor``."""
    if factor <= 1 or original_context <= 1:
        return 1.0
    return math.sqrt(1 + math.log(factor) / math.log(original_context))


def _yarn_magnitude(parameters: Values, factor: float) -> float:
    if "attention_factor" in parameters:
        return parameters.number("attention_factor")

    def grown(by: float) -> float:
        return 0.1 * by * math.log(factor) + 1.0 if factor > 1 else 1.0

    if "mscale" in parameters and "mscale_all_dim" in parameters:
        return grown(parameters.number("mscale")) / grown(parameters.number("mscale_all_dim"))
    return grown(1.0)


def _llama3(frequencies: F64, parameters: Values) -> F64:
    """Divide what turns less than ``low`` times over the original context, keep what turns more
    than ``high`` times, blend between."""
    factor = parameters.number("factor")
    low = parameters.number("low_freq_factor", default=1.0)
    high = parameters.number("high_freq_factor", default=4.0)
    if high <= low:
        raise SourceFormatError(f"high_freq_factor is {high}, and low_freq_factor {low}")
    turns = parameters.integer("original_max_position_embeddings") * frequencies / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return np.asarray(frequencies * kept + frequencies / factor * (1.0 - kept))
