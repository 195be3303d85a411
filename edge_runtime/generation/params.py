"""What a caller may ask of generation, as one frozen value, checked when it is made.

Knows no model and no engine: ranges that depend on a vocabulary or a context are checked where
those are known.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edge_runtime.errors import InvalidParameterError

if TYPE_CHECKING:
    from edge_runtime.bundle import GenerationDefaults

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_LOGIT_BIAS = 100.0
MAX_SEED = 2**64 - 1


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen and when generation ends.

    Numbers of another kind (numpy's) become Python's own, lists become tuples, and the mapping is
    copied, so a value does not change after it was checked.

    Args:
        max_tokens: most tokens to generate; None generates until the context is full.
        temperature: logits are divided by it (0 to 100); 0 is greedy.
        top_k: keep the k likeliest tokens; 0 keeps all.
        top_p: keep the smallest set whose probability reaches it (nucleus); 1 keeps all.
        min_p: drop tokens below this fraction of the likeliest token's probability; 0 keeps all.
        typical_p: locally typical sampling's probability mass; 1 keeps all.
        repetition_penalty: divides positive and multiplies negative logits of tokens seen in
            prompt or answer; above 0, and 1 changes nothing.
        presence_penalty: subtracted once from the logit of a token generated before (-2 to 2).
        frequency_penalty: subtracted once for each time a token was generated before (-2 to 2).
        logit_bias: token id -> number added to its logit before anything else (-100 to 100).
        seed: the same seed and request give the same tokens; None draws a fresh one. Negative
            seeds, which some tools use for "any", are refused: what they mean differs.
        stop: strings that end generation and are cut from the text, at most 16; one plain string
            is taken as the only one.
        stop_token_ids: token ids that end generation, besides the model's own.
        ignore_eos: go past the model's end tokens.
        shown_token_ids: special tokens whose names are part of the text, which shows none by
            itself.
        logprobs: None for none; k reports the chosen token and the k likeliest (0 to 20), of the
            distribution before penalties and filters.

    Raises:
        InvalidParameterError: a value out of range or of the wrong type, named with its value.
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
    shown_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None

    def __post_init__(self) -> None:
        checked = {
            "max_tokens": _optional_integer("max_tokens", self.max_tokens, least=1),
            "temperature": _number("temperature", self.temperature, least=0, most=100),
            "top_k": _integer("top_k", self.top_k, least=0, hint="0 keeps all tokens"),
            "top_p": _number("top_p", self.top_p, above=0, most=1),
            "min_p": _number("min_p", self.min_p, least=0, most=1),
            "typical_p": _number("typical_p", self.typical_p, above=0, most=1),
            "repetition_penalty": _number("repetition_penalty", self.repetition_penalty, above=0),
            "presence_penalty": _number(
                "presence_penalty", self.presence_penalty, least=-2, most=2
            ),
            "frequency_penalty": _number(
                "frequency_penalty", self.frequency_penalty, least=-2, most=2
            ),
            "logit_bias": _logit_bias(self.logit_bias),
            "seed": _optional_integer(
                "seed", self.seed, least=0, most=MAX_SEED, hint="leave it out for a random one"
            ),
            "stop": _stop_strings(self.stop),
            "stop_token_ids": _token_ids("stop_token_ids", self.stop_token_ids),
            "ignore_eos": _boolean("ignore_eos", self.ignore_eos),
            "shown_token_ids": _token_ids("shown_token_ids", self.shown_token_ids),
            "logprobs": _optional_integer("logprobs", self.logprobs, least=0, most=MAX_LOGPROBS),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)


def sampling_params(defaults: GenerationDefaults, **overrides: Any) -> SamplingParams:
    """Parameters of a request that may be silent about any of them.

    Each field is the first that says something of: the override, the model's own generation
    default, the OpenAI default (that of :class:`SamplingParams`).

    Args:
        defaults: what the model's makers want.
        **overrides: fields of :class:`SamplingParams`; None says nothing.

    Raises:
        InvalidParameterError: an unknown field, or a value out of range.
    """
    known = [f.name for f in dataclasses.fields(SamplingParams)]
    for name in overrides:
        if name not in known:
            raise InvalidParameterError(
                f"there is no sampling parameter {name!r}", hint=f"known: {', '.join(known)}"
            )
    values = {f.name: getattr(defaults, f.name) for f in dataclasses.fields(defaults)}
    values.update((name, value) for name, value in overrides.items() if value is not None)
    return SamplingParams(**{name: value for name, value in values.items() if value is not None})


def _number(
    name: str,
    value: object,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise _wrong_kind(name, value, "a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    lowest, lower_end = (above, "above ") if above is not None else (least, "")
    in_range = (
        math.isfinite(number)
        and (least is None or number >= least)
        and (above is None or number > above)
        and (most is None or number <= most)
    )
    if not in_range:
        allowed = f"{lower_end}{lowest:g}" + (f" to {most:g}" if most is not None else "")
        raise InvalidParameterError(f"{name} is {_shown(value)}; it must be {allowed}")
    return number


def _integer(
    name: str, value: object, *, least: int, most: int | None = None, hint: str | None = None
) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise _wrong_kind(name, value, "a whole number")
    number = int(value)
    if number < least or (most is not None and number > most):
        allowed = f"{least} to {most}" if most is not None else f"{least} or more"
        raise InvalidParameterError(f"{name} is {_shown(value)}; it must be {allowed}", hint=hint)
    return number


def _optional_integer(
    name: str, value: object, *, least: int, most: int | None = None, hint: str | None = None
) -> int | None:
    return None if value is None else _integer(name, value, least=least, most=most, hint=hint)


def _boolean(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong_kind(name, value, "true or false")
    return value


def _logit_bias(value: object) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise _wrong_kind("logit_bias", value, "a mapping from token id to number")
    return {
        _integer("a token id in logit_bias", token, least=0): _number(
            f"logit_bias[{token}]", bias, least=-MAX_LOGIT_BIAS, most=MAX_LOGIT_BIAS
        )
        for token, bias in value.items()
    }


def _stop_strings(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, (list, tuple)):
        raise _wrong_kind("stop", value, "a string or a list of strings")
    for text in value:
        if not isinstance(text, str):
            raise _wrong_kind("a string in stop", text, "a string")
        if not text:
            raise InvalidParameterError("stop holds an empty string, which every text contains")
    if len(value) > MAX_STOP_STRINGS:
        raise InvalidParameterError(
            f"stop holds {len(value)} strings; at most {MAX_STOP_STRINGS} are allowed"
        )
    return tuple(value)


def _token_ids(name: str, value: object) -> tuple[int, ...]:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise _wrong_kind(name, value, "a list of token ids")
    return tuple(_integer(f"a token id in {name}", token, least=0) for token in value)


def _wrong_kind(name: str, value: object, expected: str) -> InvalidParameterError:
    return InvalidParameterError(f"{name} is {_shown(value)}; it must be {expected}")


def _shown(value: object) -> str:
    """The value as its owner wrote it, short enough for one line."""
    try:
        shown = repr(value)
    except ValueError:  # an integer with more digits than Python prints
        shown = "a very large number"
    return shown if len(shown) <= 60 else shown[:57] + "..."
