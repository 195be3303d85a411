from __future__ import annotations

import random

import pytest

from edge_runtime.embedding.batches import group_by_length


@pytest.mark.parametrize("seed", range(20))
def test_every_text_is_in_one_batch_and_every_batch_within_its_bounds(seed: int):
    chance = random.Random(seed)
    lengths = [chance.randint(1, 300) for _ in range(chance.randint(1, 200))]
    batches = group_by_length(lengths, most_tokens=512, most_waste=0.1)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        held = [lengths[i] for i in batch]
        padded = max(held) * len(held)
        assert padded <= 512 or len(batch) == 1
        assert padded - sum(held) <= 0.1 * padded


def test_texts_of_one_length_share_a_batch():
    assert group_by_length([4] * 10, most_tokens=40, most_waste=0.0) == [list(range(10))]


def test_a_text_longer_than_a_batch_has_one_of_its_own():
    assert group_by_length([1000, 4], most_tokens=512, most_waste=0.9) == [[0], [1]]


def test_no_texts_make_no_batches():
    assert group_by_length([], most_tokens=512, most_waste=0.1) == []
