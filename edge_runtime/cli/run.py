"""Answer one prompt, from the command line, from standard input, or both."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from edge_runtime.cli.generation import (
    Answer,
    add_arguments,
    chosen_params,
    sampling_overrides,
    statistics,
    stream_answer,
    terminal_writer,
    timings,
)
from edge_runtime.cli.grammar_argument import add_grammar_arguments, chosen_grammar
from edge_runtime.cli.main import INTERRUPTED
from edge_runtime.cli.session import Session, open_session
from edge_runtime.cli.standard_input import read_piped_text, require_valid_unicode
from edge_runtime.engine.request import FinishReason, TokenLogprob
from edge_runtime.errors import EmptyPromptError, UsageError

if TYPE_CHECKING:
    from edge_runtime.text.tokenizer import Tokenizer


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_arguments(parser)
    parser.add_argument(
        "prompt",
        metavar="PROMPT",
        nargs="*",
        default=[],
        help="what to ask; text piped to standard input follows it after a blank line",
    )
    parser.add_argument(
        "--raw", action="store_true", help="no chat template: the model continues the text"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object at the end instead")
    parser.add_argument(
        "--logprobs", type=int, metavar="N", help="with --json: the N likeliest at each token"
    )
    add_grammar_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Generate and stream; exit code 130 if Ctrl-C ended the answer."""
    _check_combinations(arguments)
    overrides = sampling_overrides(arguments)
    grammar = chosen_grammar(arguments)
    prompt = _prompt(arguments)
    with open_session(arguments) as session:
        params = chosen_params(session, overrides)
        ids = _encode(session, prompt, arguments)
        constraint = None if grammar is None else session.engine.grammars.constraint(grammar)
        if arguments.json:
            answer = stream_answer(session, ids, params, lambda text: None, constraint)
            plain = _plain(session, answer)
            print(json.dumps(plain, ensure_ascii=False), flush=True)
        else:
            write = terminal_writer()
            answer = stream_answer(session, ids, params, write, constraint)
            if not answer.text.endswith("\n"):
                write("\n")
        if arguments.verbose:
            print(f"\n{statistics(session, answer)}", file=sys.stderr)
    return INTERRUPTED if answer.finish_reason is FinishReason.CANCELLED else 0


def _check_combinations(arguments: argparse.Namespace) -> None:
    if arguments.raw and arguments.system is not None:
        raise UsageError(
            "--raw has no place for --system", hint="write it into the prompt, or drop --raw"
        )
    if arguments.logprobs is not None and not arguments.json:
        raise UsageError("--logprobs needs --json", hint="add --json")


def _prompt(arguments: argparse.Namespace) -> str:
    """The argument, the piped text, or both with a blank line between."""
    words = " ".join(arguments.prompt)
    require_valid_unicode(words, "the prompt")
    require_valid_unicode(arguments.system or "", "--system")
    parts = [part for part in (words, read_piped_text()) if part]
    prompt = "\n\n".join(parts)
    # A raw text of blanks can be continued; a message of blanks asks nothing.
    if not (prompt if arguments.raw else prompt.strip()):
        raise EmptyPromptError(
            "there is no prompt", hint='edge-runtime run MODEL "your question", or pipe a text in'
        )
    return prompt


def _encode(session: Session, prompt: str, arguments: argparse.Namespace) -> list[int]:
    if arguments.raw:
        return session.engine.encode_prompt(prompt)
    messages = [{"role": "user", "content": prompt}]
    system = session.system if arguments.system is None else arguments.system
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return session.engine.encode_chat(messages)


def _plain(session: Session, answer: Answer) -> dict[str, Any]:
    usage = answer.usage
    plain: dict[str, Any] = {
        "model": session.engine.manifest.name,
        "text": answer.text,
        "finish_reason": answer.finish_reason.value,
        "usage": None
        if usage is None
        else {
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.completion_tokens,
            "draft_tokens": usage.draft_tokens,
            "accepted_draft_tokens": usage.accepted_draft_tokens,
        },
        "timings": None if usage is None else timings(session, usage),
    }
    if answer.logprobs:
        tokenizer = session.engine.tokenizer
        plain["logprobs"] = [
            _plain_logprob(tokenizer, entry.chosen)
            | {"top": [_plain_logprob(tokenizer, other) for other in entry.top]}
            for entry in answer.logprobs
        ]
    return plain


def _plain_logprob(tokenizer: Tokenizer, entry: TokenLogprob) -> dict[str, Any]:
    """A token by id, text and bytes: one token may be a part of a character."""
    held = tokenizer.token_bytes(entry.token_id)
    special = tokenizer.is_special(entry.token_id)
    text = tokenizer.id_to_token(entry.token_id) if special else held.decode("utf-8", "replace")
    return {
        "token_id": entry.token_id,
        "token": text,
        "bytes": list(held),
        "logprob": entry.logprob,
    }
