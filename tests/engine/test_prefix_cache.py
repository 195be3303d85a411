"""Which row a prompt takes, what is copied, and what goes first."""

from __future__ import annotations

import numpy as np
import pytest

from edge_runtime.engine.prefix_cache import Placement, PrefixCache, shared_prefix


def warm(cache: PrefixCache, *tokens: int) -> int:
    """Place a prompt and end it; gives its row."""
    place = cache.place([*tokens, 0], running={}, copy_warm=False)
    cache.leave(place.slot, tokens)
    return place.slot


def place(cache: PrefixCache, *tokens: int, copy_warm: bool = True, **held: int) -> Placement:
    running = {int(slot.removeprefix("row")): count for slot, count in held.items()}
    return cache.place(tokens, running=running, copy_warm=copy_warm)


def test_the_longest_match_wins():
    cache = PrefixCache(slots=3)
    short = place(cache, *range(20), copy_warm=False).slot
    long = place(cache, *range(20), *range(50, 80), copy_warm=False).slot
    cache.leave(short, range(20))
    cache.leave(long, [*range(20), *range(50, 80)])
    found = place(cache, *range(20), *range(50, 80), 99)
    assert (found.slot, found.shared_tokens, found.copied_from) == (long, 50, None)


def test_a_prompt_that_is_held_whole_evaluates_its_last_token():
    cache = PrefixCache(slots=1)
    warm(cache, 1, 2, 3)
    assert place(cache, 1, 2, 3).shared_tokens == 2


def test_a_talk_goes_on_in_its_own_row():
    cache = PrefixCache(slots=2)
    row = warm(cache, *range(100))
    found = place(cache, *range(100), 200, 201)
    assert found == Placement(row, 100, None, lost_tokens=0)


def test_a_shared_beginning_is_copied_so_that_the_talk_it_belongs_to_stays():
    cache = PrefixCache(slots=2)
    talk = warm(cache, *range(100), *range(200, 300))
    other = place(cache, *range(100), 999)
    assert (other.shared_tokens, other.copied_from) == (100, talk)
    assert other.slot != talk
    assert cache.warm_tokens == 200, "the talk is whole"


def test_without_memory_for_a_copy_the_row_itself_is_taken():
    cache = PrefixCache(slots=2)
    talk = warm(cache, *range(100), *range(200, 300))
    found = place(cache, *range(100), 999, copy_warm=False)
    assert found == Placement(talk, 100, None, lost_tokens=100)


def test_what_a_running_sequence_has_read_so_far_is_copied():
    cache = PrefixCache(slots=2)
    first = place(cache, *range(100))
    second = place(cache, *range(100), 5, copy_warm=False, **{f"row{first.slot}": 64})
    assert (second.shared_tokens, second.copied_from) == (64, first.slot)


def test_too_little_is_not_worth_copying():
    cache = PrefixCache(slots=2)
    first = place(cache, *range(100))
    second = place(cache, *range(100), 5, **{f"row{first.slot}": 3})
    assert (second.shared_tokens, second.copied_from) == (0, None)


def test_an_unrelated_prompt_takes_what_is_worth_least():
    cache = PrefixCache(slots=3)
    often, seldom, long = (warm(cache, *range(n, n + 30)) for n in (0, 100, 200))
    for _ in range(3):
        cache.leave(place(cache, *range(30), 7).slot, list(range(30)))
    assert place(cache, 999).slot == seldom, "unused for longer than the third, of equal length"
    assert place(cache, 998).slot == long
    assert place(cache, 997).slot == often


def test_what_another_row_holds_as_well_is_worth_nothing():
    cache = PrefixCache(slots=2)
    talk = warm(cache, *range(100), *range(200, 210))
    cache.leave(place(cache, *range(100), 5).slot, list(range(100)))
    again = place(cache, *range(300, 400))
    assert again.slot != talk, "its beginning is whole in the other row"


def test_trimming_takes_the_least_valuable_first_and_from_its_end():
    cache = PrefixCache(slots=3)
    old, used, new = (warm(cache, *range(n, n + 10)) for n in (0, 100, 200))
    cache.leave(place(cache, *range(100, 110), 7).slot, list(range(100, 110)))
    assert cache.trim(14) == [(old, 0), (new, 6)]
    assert cache.warm_tokens == 16
    assert cache.trim(100) == [(new, 0), (used, 0)]
    assert cache.trim(1) == []


def test_a_row_is_found_by_all_of_its_tokens():
    cache = PrefixCache(slots=2)
    row = warm(cache, 1, 2, 3, 4)
    assert cache.row_of([1, 2, 3]) == row
    assert cache.row_of([1, 2, 3, 4, 5]) is None
    cache.forget(row)
    assert cache.row_of([1, 2, 3]) is None


@pytest.mark.parametrize(
    "a, b, shared",
    [([1, 2, 3], [1, 2, 4], 2), ([], [1], 0), ([1, 2], [1, 2, 3], 2), ([5], [6], 0), ([], [], 0)],
)
def test_shared_prefix(a: list[int], b: list[int], shared: int):
    assert shared_prefix(np.array(a, np.int32), np.array(b, np.int32)) == shared
