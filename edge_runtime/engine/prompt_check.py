"""Is a prompt one that this engine can evaluate: token ids, not too many, each in the vocabulary.

Knows numbers alone.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence as Ordered

from edge_runtime.errors import EmptyPromptError, InvalidParameterError, PromptTooLongError


def checked_prompt(
    prompt_ids: Ordered[int], *, context_length: int, vocabulary_size: int
) -> tuple[int, ...]:
    """The prompt as plain ints.

    Raises:
        EmptyPromptError, PromptTooLongError: too few or too many.
        InvalidParameterError: no token ids, or one outside the vocabulary.
    """
    if isinstance(prompt_ids, str):
        raise InvalidParameterError(
            "the prompt is a text where token ids are taken",
            hint="use stream() or generate(), or encode_prompt() first",
        )
    try:
        ids = tuple(map(operator.index, prompt_ids))
    except TypeError as exc:
        raise InvalidParameterError(f"the prompt is no list of token ids: {exc}") from exc
    if not ids:
        raise EmptyPromptError("the prompt is empty", hint="give some text to go on from")
    if len(ids) > context_length:
        raise PromptTooLongError(len(ids), context_length)
    for token in (min(ids), max(ids)):
        if not 0 <= token < vocabulary_size:
            raise InvalidParameterError(
                f"token {token} is outside the model's {vocabulary_size} tokens"
            )
    return ids
