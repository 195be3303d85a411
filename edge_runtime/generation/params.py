"""What a caller may ask of generation, as one frozen value, checked when it is made.

Knows no model and no engine: ranges that depend on a vocabulary or a context are checked where
those are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edge_runtime.errors import InvalidParameterError

MAX_LOGPROBS = 20


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen and when generation ends.

    Args:
        max_tokens: most tokens to generate; None generates until the context is full.
        temperature: logits are divided by it; 0 is greedy.
        top_k: keep the k likeliest tokens; 0 keeps all.
        top_p: keep the smallest set whose probability reaches it (nucleus); 1 keeps all.
        min_p: drop tokens below this fraction of the likeliest token's probability; 0 keeps all.
        typical_p: locally typical sampling's probability mass; 1 keeps all.
        repetition_penalty: divides positive and multiplies negative logits of tokens seen in
            prompt or answer; 1 changes nothing.
        presence_penalty: subtracted once from the logit of a token generated before.
        frequency_penalty: subtracted once for each time a token was generated before.
        logit_bias: token id -> number added to its logit before anything else.
        seed: the same seed and request give the same tokens; None draws a fresh one.
        stop: strings that end generation and are cut from the text.
        stop_token_ids: token ids that end generation, besides the model's own.
        ignore_eos: go past the model's end tokens.
        logprobs: None for none; k reports the chosen token and the k likeliest (0 to 20), of the
            distribution before penalties and filters.

    Raises:
        InvalidParameterError: a value out of range, named with its value.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        raise NotImplementedError  # replaced by the generation room
