"""What `run` and `chat` share: how tokens are chosen, an answer that streams, and what it took.

Knows the engine's driver; knows no prompt and no conversation.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edge_runtime.cli.device import provider_line
from edge_runtime.cli.session import (
    Session,
    add_model_argument,
    add_prompt_cache_argument,
    add_running_arguments,
)
from edge_runtime.cli.tables import pairs
from edge_runtime.engine.options import Speculation
from edge_runtime.engine.request import ChosenLogprob, FinishReason, Usage
from edge_runtime.store.progress import format_bytes

if TYPE_CHECKING:
    from edge_runtime.generation.params import SamplingParams
    from edge_runtime.guidance.constraint import TokenConstraint

# What the command line samples with where the model's makers advise nothing (GGUF files have no
# place for it). Plain sampling from all tokens makes a small model ramble without an end; these are
# the values that users of other local runtimes know.
_SAMPLING_WITHOUT_ADVICE = {"temperature": 0.7, "top_k": 40, "top_p": 0.95, "min_p": 0.05}

# Control characters other than tab and newline: on a terminal a model's text must not be able to
# move the cursor, change the title or paint over what stands there.
_CONTROLS = dict.fromkeys(
    [c for c in range(0x20) if chr(c) not in "\t\n"] + [0x7F, *range(0x80, 0xA0)]
)


@dataclass(frozen=True)
class Answer:
    """What was generated; ``usage`` is None where generation ended before it began."""

    text: str
    finish_reason: FinishReason
    usage: Usage | None
    logprobs: tuple[ChosenLogprob, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose a model, how it runs and how tokens are chosen."""
    add_model_argument(parser)
    parser.add_argument("--system", metavar="TEXT", help="the system message")
    common = ", ".join(f"{name} {value}" for name, value in _SAMPLING_WITHOUT_ADVICE.items())
    sampling = parser.add_argument_group(
        "sampling", f"default: what the model's makers advise; if they do not, {common}"
    )
    sampling.add_argument("--max-tokens", type=int, metavar="N", help="most tokens to generate")
    sampling.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    sampling.add_argument("--top-p", type=float, metavar="P", help="nucleus; 1 keeps all")
    sampling.add_argument("--top-k", type=int, metavar="K", help="0 keeps all")
    sampling.add_argument("--min-p", type=float, metavar="P", help="0 keeps all")
    sampling.add_argument("--typical-p", type=float, metavar="P", help="1 keeps all")
    sampling.add_argument(
        "--repeat-penalty", type=float, metavar="R", help="above 1 repeats less; 1 does nothing"
    )
    sampling.add_argument("--seed", type=int, metavar="N", help="the same seed, the same answer")
    sampling.add_argument(
        "--stop", action="append", metavar="TEXT", help="end before this text (may be repeated)"
    )
    sampling.add_argument(
        "--ignore-eos", action="store_true", help="go on after the model's end token"
    )
    # One answer at a time: drafts pay, and no company changes the text.
    running = add_running_arguments(parser, speculation=Speculation.PROMPT_LOOKUP)
    add_prompt_cache_argument(running)
    running.add_argument(
        "--verbose", action="store_true", help="times, speeds and memory on stderr afterwards"
    )


def sampling_overrides(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the command line says of sampling; None where it is silent.

    Raises:
        InvalidParameterError: a value out of its range; before anything slow is done.
    """
    from edge_runtime.generation.params import SamplingParams

    overrides = {
        "max_tokens": arguments.max_tokens,
        "temperature": arguments.temperature,
        "top_p": arguments.top_p,
        "top_k": arguments.top_k,
        "min_p": arguments.min_p,
        "typical_p": arguments.typical_p,
        "repetition_penalty": arguments.repeat_penalty,
        "seed": arguments.seed,
        "stop": tuple(arguments.stop) if arguments.stop else None,
        "ignore_eos": arguments.ignore_eos or None,
        "logprobs": getattr(arguments, "logprobs", None),
    }
    SamplingParams(**{name: value for name, value in overrides.items() if value is not None})
    return overrides


def chosen_params(session: Session, overrides: dict[str, Any]) -> SamplingParams:
    """What the command line says, then what the makers advise, then what suits small models."""
    advice = session.engine.manifest.generation
    if all(getattr(advice, name) is None for name in _SAMPLING_WITHOUT_ADVICE):
        said = {name: value for name, value in overrides.items() if value is not None}
        overrides = overrides | _SAMPLING_WITHOUT_ADVICE | said
    return session.engine.default_params(**overrides)


def stream_answer(
    session: Session,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    write: Callable[[str], None],
    constraint: TokenConstraint | None = None,
) -> Answer:
    """Generate, handing each piece of text on as it comes.

    Ctrl-C ends the generation, not the program: the answer so far comes back with the finish
    reason CANCELLED. A second one is not held back.

    Raises:
        EdgeRuntimeError: the prompt is refused, or a step failed.
    """
    handle = session.driver.submit(prompt_ids, params, constraint=constraint)
    pieces: list[str] = []
    logprobs: list[ChosenLogprob] = []
    ended: list[tuple[FinishReason, Usage | None]] = []

    def take() -> None:
        for delta in handle:
            pieces.append(delta.text)
            logprobs.extend(delta.logprobs)
            if delta.finish_reason is not None:
                ended.append((delta.finish_reason, delta.usage))
            if delta.text:
                write(delta.text)

    try:
        take()
    except KeyboardInterrupt:
        handle.cancel()
        if not ended:
            take()
        ended.append((FinishReason.CANCELLED, ended[-1][1] if ended else None))
    except BaseException:
        handle.cancel()
        raise
    reason, usage = ended[-1]
    return Answer("".join(pieces), reason, usage, tuple(logprobs))


def terminal_writer() -> Callable[[str], None]:
    """A function that shows a piece of text on stdout at once."""
    out = sys.stdout
    if out is None:  # closed by whoever started the program
        return lambda text: None
    safe = out.isatty()

    def write(text: str) -> None:
        out.write(text.translate(_CONTROLS) if safe else text)
        out.flush()

    return write


def timings(session: Session, usage: Usage) -> dict[str, float | None]:
    """Times in seconds and speeds in tokens per second; None where there is nothing to divide.

    The first token comes out of the prefill's last step, so decoding has made one token fewer.
    """
    read = usage.prompt_tokens - usage.cached_tokens
    return {
        "load_s": session.load_s,
        "ttft_s": usage.ttft_s,
        "prefill_s": usage.prefill_s,
        "decode_s": usage.decode_s,
        "prefill_tokens_per_s": _rate(read, usage.prefill_s),
        "decode_tokens_per_s": _rate(usage.completion_tokens - 1, usage.decode_s),
    }


def statistics(session: Session, answer: Answer) -> str:
    """What `--verbose` and `/stats` show of an answer and of the memory now."""
    lines: list[tuple[str, str]] = []
    if answer.usage is not None:
        usage, times = answer.usage, timings(session, answer.usage)
        reused = f" ({usage.cached_tokens} of them cached)" if usage.cached_tokens else ""
        prefill = _speed(times["prefill_tokens_per_s"])
        decode = _speed(times["decode_tokens_per_s"])
        lines = [
            ("prompt", f"{usage.prompt_tokens} tokens{reused}, prefill {prefill}"),
            ("answer", f"{usage.completion_tokens} tokens, decode {decode}"),
            ("finished", answer.finish_reason.value),
            ("TTFT", f"{1000 * usage.ttft_s:.0f} ms, after {session.load_s:.2f} s of loading"),
        ]
        if usage.draft_tokens:
            share = f"{usage.accepted_draft_tokens} of {usage.draft_tokens} tokens accepted"
            lines.append(("drafts", share))
    if provider := provider_line(session.engine):
        lines.append(("provider", provider))
    memory = session.engine.memory()
    resident, anonymous = _size(memory.resident_bytes), _size(memory.anonymous_bytes)
    cache = f"{memory.cache_tokens} tokens, {format_bytes(memory.cache_bytes)}"
    lines += [("memory", f"{resident} resident, {anonymous} of it anonymous"), ("cache", cache)]
    return pairs(lines)


def _rate(tokens: int, seconds: float) -> float | None:
    return tokens / seconds if tokens > 0 and seconds > 0 else None


def _speed(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.1f} tokens/s"


def _size(count: int | None) -> str:
    return "unknown" if count is None else format_bytes(count)
