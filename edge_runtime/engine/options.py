"""How to run a bundle: what a caller chooses before loading it.

Knows the manifest's numbers; opens nothing.
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from enum import Enum

from edge_runtime.bundle import CACHE_TYPES, CacheType, Manifest
from edge_runtime.errors import InvalidParameterError

# Models advertise up to a million tokens. The cache is committed as it is used, but what may be
# used should be a number that the user chose or that suits a small device.
DEFAULT_CONTEXT_LENGTH = 8192
# The first few tokens are what attention rests on; four do in the paper that found it, and a few
# more keep a template's first mark whole.
DEFAULT_KEEP_TOKENS = 8
# Ten tokens a second is about as fast as people read. A device that reads 64 tokens of a prompt in
# less than that never shrinks a chunk.
DEFAULT_MAX_INTER_TOKEN_MS = 100
# Each waiting request holds its prompt: some 8 KiB a thousand tokens. Whoever waits behind so many
# on a small device is better told at once.
DEFAULT_MAX_WAITING = 512
_OPTIONAL_FIELDS = (
    "context_length",
    "threads",
    "memory_cap_bytes",
    "cache_tokens",
    "max_inter_token_ms",
)
_FIELDS = (*_OPTIONAL_FIELDS, "chunk_size", "slots", "max_waiting", "keep_tokens")


class ContextFull(str, Enum):
    """What becomes of a request whose context is full."""

    STOP = "stop"  # it ends with `length`
    SLIDE = "slide"  # it goes on without its older tokens


class AdmissionMode(str, Enum):
    """What is asked of the cache's tokens when a request starts."""

    RESERVE = "reserve"  # prompt and max_tokens, capped by the context
    OPTIMISTIC = "optimistic"  # the prompt; the youngest yields when tokens run out


class Speculation(str, Enum):
    """Where guesses of the next tokens come from."""

    PROMPT_LOOKUP = "prompt-lookup"  # what followed when the text last said the same
    OFF = "off"


@dataclass(frozen=True)
class MemoryLimit:
    """Bytes that a process may take here, and where the number comes from, for people."""

    bytes: int
    source: str


@dataclass(frozen=True)
class EngineOptions:
    """How to run a bundle.

    Args:
        context_length: tokens that a sequence may hold; None is the model's own, at most 8,192.
        chunk_size: most prompt tokens in one step. From about 64 a chunk runs at full speed;
            smaller ones take less memory and are cancelled sooner.
        threads: None chooses by affinity, quota and core speeds.
        slots: sequences that run at the same time.
        memory_cap_bytes: most that the process may have resident; chunk, slots, the cache's type
            and context give way to it, in that order. None keeps no account.
        memory_limit: what machine and container leave to this process
            (:func:`edge_runtime.engine.memory_limit.find_memory_limit`): the cap where none is
            given and the model could come near it. None looks at neither.
        cache_tokens: tokens that all sequences and warm prefixes together may hold; a sequence
            holds no more than that. None is slots times context.
        max_waiting: requests that may wait for a slot; further ones are refused.
        admission: "reserve" keeps for each request all that it may come to need; "optimistic"
            starts it with room for its prompt alone, and preempts the youngest of the least urgent
            when tokens run out: it goes on later, from where it was.
        max_inter_token_ms: how long a stream should wait for its next token at most because
            other prompts are read: chunks beside it shrink to that, by what steps have cost so
            far, down to 8 tokens. None reads full chunks. Other chunks round a little differently,
            so that where the two likeliest tokens nearly tie, a request's text can depend on how
            busy the device was; with None, on nothing but the request and what was cached of it.
        context_full: "stop" ends a request whose context is full with `length`; "slide" keeps its
            first ``keep_tokens`` and the newer half of the rest, and reads that again at its new
            place. `Usage.dropped_tokens` says how much went. Without ``max_tokens`` such a request
            may go on for ever.
        keep_tokens: tokens at a request's start that sliding never drops.
        providers: execution providers to try in this order, by onnxruntime's names or short ones
            (``cuda``), with options where wanted (``openvino:device_type=GPU``). One alone is
            taken or loading fails. Empty takes what onnxruntime and the bundle have.
        speculation: "prompt-lookup" drafts what the text has said before, where a sequence decodes
            alone and where that is likely to pay; "off" takes one token a step. The answers are
            those of the same distribution either way. But with integer activations a step of
            several tokens rounds differently, so with drafts the same seed may give another text
            in company than alone.
        cache_type: "float32", or "int8": a quarter of the memory and faster with much held, for
            nearly the same answers. The bundle must have the graph for it.

    Raises:
        InvalidParameterError: a number that is not a whole one of at least 1, no such mode, way
            of speculation or type of cache, or providers that are no tuple of names.
    """

    context_length: int | None = None
    chunk_size: int = 64
    threads: int | None = None
    slots: int = 1
    memory_cap_bytes: int | None = None
    memory_limit: MemoryLimit | None = None
    cache_tokens: int | None = None
    max_waiting: int = DEFAULT_MAX_WAITING
    admission: AdmissionMode | str = AdmissionMode.RESERVE
    context_full: ContextFull | str = ContextFull.STOP
    keep_tokens: int = DEFAULT_KEEP_TOKENS
    providers: tuple[str, ...] = ()
    max_inter_token_ms: int | None = DEFAULT_MAX_INTER_TOKEN_MS
    speculation: Speculation | str = Speculation.OFF
    cache_type: CacheType = "float32"

    def __post_init__(self) -> None:
        if not isinstance(self.providers, tuple) or not all(
            isinstance(name, str) for name in self.providers
        ):
            raise InvalidParameterError(
                f"providers is {self.providers!r:.100}", hint='use a tuple, such as ("cuda", "cpu")'
            )
        for name in _FIELDS:
            value = getattr(self, name)
            if value is None and name in _OPTIONAL_FIELDS:
                continue
            whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
            if not whole or value < 1:
                raise InvalidParameterError(
                    f"{name} is {value!r}", hint="use a whole number, 1 or more"
                )
        for name, kind in (
            ("admission", AdmissionMode),
            ("context_full", ContextFull),
            ("speculation", Speculation),
        ):
            known = [member.value for member in kind]
            if getattr(self, name) not in known:
                raise InvalidParameterError(
                    f"{name} is {getattr(self, name)!r}", hint=f"use {' or '.join(known)}"
                )
        if self.cache_type not in CACHE_TYPES:
            raise InvalidParameterError(
                f"cache_type is {self.cache_type!r}", hint=f"use {' or '.join(CACHE_TYPES)}"
            )


def context_length(manifest: Manifest, asked: int | None) -> int:
    """Tokens that a sequence may hold: what was asked for, or what suits model and device.

    Raises:
        InvalidParameterError: more than the model's own.
    """
    model = manifest.dimensions.context_length
    if asked is None:
        return min(model, DEFAULT_CONTEXT_LENGTH)
    if asked > model:
        raise InvalidParameterError(
            f"a context of {asked} tokens is longer than the model's {model}",
            hint=f"use --context {model} or less",
        )
    return asked
