"""Tokens that end a turn or a text, whoever trained the model, by their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

_END_TOKENS = (
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|eom|>", "<end_of_turn>", "<turn|>"),
    *("<|end|>", "<|return|>", "<|call|>", "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"),
    *("<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|EOT|>", "<|END_OF_TURN_TOKEN|>", "[|endofturn|]"),
    *("<end_of_utterance>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<|assistant_end|>"),
)


def end_token_ids(
    named: set[int],
    ids: Mapping[str, int],
    is_control: Callable[[int], bool],
    template: str | None,
) -> tuple[int, ...]:
    """The union of what a source names, what is known by name, and what the template writes.

    Args:
        named: by the source.
        ids: token -> id, of the whole vocabulary.
        is_control: whether a token steers the model and stands for no text.
        template: the chat template, or None.
    """
    ends = set(named)
    for token in _END_TOKENS:
        token_id = ids.get(token)
        if token_id is None:
            continue
        written = template is not None and token in template
        if written or is_control(token_id):
            ends.add(token_id)
    # Harmony-style templates end a message with <|end|> and go on; these two end the turn.
    if {ids.get("<|return|>"), ids.get("<|call|>")} <= ends:
        ends.discard(ids.get("<|end|>", -1))
    return tuple(sorted(ends))
