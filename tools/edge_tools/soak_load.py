"""What a soak asks of an engine: requests of mixed lengths, some to be cancelled, some refused, some for several answers to one prompt.

From a seed, so that a run can be had again. Token ids instead of words: what is soaked is memory,
slots and queues, and any token costs the same. Knows no engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

# Shares of all requests.
_TOO_LONG, _CANCELLED, _SHARING, _SEVERAL = 0.04, 0.2, 0.3, 0.1
_MOST_ANSWERS = 4
_PREFIXES = 3
# Prompt tokens as parts of the context, and how often: most are short, a few fill half of it.
_LENGTHS = ((0.005, 0.06, 70), (0.06, 0.2, 25), (0.2, 0.5, 5))
_LOWEST_TOKEN = 3  # past the special tokens of common vocabularies; nothing depends on it


@dataclass(frozen=True)
class SoakRequest:
    """One request of a soak.

    ``cancel_after`` deltas it is cancelled, 0 being at once; None lets it run to its end.
    Requests of one ``group`` are several answers to one prompt. ``too_long`` has more tokens than the context, and is to be refused.
    """

    number: int
    prompt_ids: tuple[int, ...]
    max_tokens: int
    seed: int
    cancel_after: int | None
    too_long: bool
    group: int


def soak_requests(
    count: int, *, seed: int, context_length: int, vocabulary_size: int, longest_answer: int = 12
) -> Iterator[SoakRequest]:
    """The requests of a soak, in order.

    Args:
        count: how many.
        seed: the same seed, the same requests.
        context_length: tokens that the engine holds for one.
        vocabulary_size: token ids are below it.
        longest_answer: most tokens that one asks for.
    """
    random = Random(seed)

    def tokens(length: int) -> tuple[int, ...]:
        return tuple(random.randrange(_LOWEST_TOKEN, vocabulary_size) for _ in range(length))

    prefixes = [tokens(max(1, context_length // 10)) for _ in range(_PREFIXES)]
    number = group = 0
    while number < count:
        group += 1
        low, high, _ = random.choices(_LENGTHS, [weight for *_, weight in _LENGTHS])[0]
        length = max(1, round(context_length * random.uniform(low, high)))
        prompt = tokens(length)
        if random.random() < _SHARING:
            prompt = random.choice(prefixes) + prompt
        too_long = random.random() < _TOO_LONG
        if too_long:
            prompt += tokens(context_length + 1 - len(prompt) + random.randrange(20))
        several = random.random() < _SEVERAL
        answers = random.randint(2, _MOST_ANSWERS) if several else 1
        for _ in range(min(answers, count - number)):
            answer = random.randint(1, longest_answer)
            cancelled = not too_long and random.random() < _CANCELLED
            yield SoakRequest(
                number=number,
                prompt_ids=prompt,
                max_tokens=answer,
                seed=random.randrange(2**31),
                cancel_after=random.randint(0, answer) if cancelled else None,
                too_long=too_long,
                group=group,
            )
            number += 1
