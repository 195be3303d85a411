import random
from collections.abc import Iterable, Sequence

import pytest

from edge_runtime.errors import InvalidParameterError
from edge_runtime.text.stop_strings import StopStringMatcher


def run(stop: Sequence[str], pieces: Iterable[str]) -> tuple[str, str | None]:
    matcher = StopStringMatcher(stop)
    text = "".join(matcher.feed(piece) for piece in pieces)
    return text + matcher.flush(), matcher.matched


def search(stop: Sequence[str], text: str) -> tuple[str, str | None]:
    """What is right, by looking at every place of the whole text."""
    for start in range(len(text)):
        found = [s for s in stop if text.startswith(s, start)]
        if found:
            return text[:start], max(found, key=len)
    return text, None


def test_stop_string_that_straddles_pieces_is_cut_exactly() -> None:
    assert run(["\nUser:"], ["Hi", " there.\nU", "se", "r: more", "!"]) == ("Hi there.", "\nUser:")


def test_what_may_begin_a_stop_string_is_held_and_released_when_it_does_not() -> None:
    matcher = StopStringMatcher(["STOP"])
    assert matcher.feed("a S") == "a "
    assert matcher.feed("TO") == ""
    assert matcher.feed("RE") == "STORE"
    assert matcher.feed("S") == ""
    assert matcher.flush() == "S"
    assert matcher.matched is None


def test_text_before_a_match_comes_with_it_and_nothing_after() -> None:
    matcher = StopStringMatcher(["##"])
    assert matcher.feed("one ## two") == "one "
    assert matcher.matched == "##"
    assert matcher.feed("three") == ""
    assert matcher.flush() == ""


@pytest.mark.parametrize(
    ("stop", "text", "expected"),
    [
        (["bc", "abcd"], "xabcd", ("x", "abcd")),  # begins first, though it ends last
        (["bc", "abcd"], "xabce", ("xa", "bc")),
        (["\n", "\n\n"], "a\n\nb", ("a", "\n\n")),  # the longest of those that begin together
        (["\n", "\n\n"], "a\nb", ("a", "\n")),
        (["bc", "abcd"], "xabc", ("xa", "bc")),  # decided by the end of the text
        (["\n", "\n\n"], "a\n", ("a", "\n")),
        (["aab"], "aaab", ("a", "aab")),  # the start of a match lies in a failed one
        (["end", "end"], "the end", ("the ", "end")),
        ([], "anything", ("anything", None)),
    ],
)
def test_first_beginning_wins_then_the_longest(
    stop: list[str], text: str, expected: tuple[str, str | None]
) -> None:
    assert run(stop, [text]) == run(stop, list(text)) == expected


def test_match_is_reported_as_soon_as_no_better_one_is_possible() -> None:
    matcher = StopStringMatcher(["ab", "abcd"])
    matcher.feed("ab")
    assert matcher.matched is None
    assert matcher.feed("x") == ""
    assert matcher.matched == "ab"
    single = StopStringMatcher(["ab", "xyz"])
    single.feed("ab")
    assert single.matched == "ab"


def test_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidParameterError):
        StopStringMatcher(["a", ""])


def test_any_division_of_a_text_gives_what_searching_the_whole_gives() -> None:
    draw = random.Random(11)
    for _ in range(3000):
        alphabet = draw.choice(["ab", "abc", "aé\n"])
        stop = [
            "".join(draw.choices(alphabet, k=draw.randint(1, 5))) for _ in range(draw.randint(1, 4))
        ]
        text = "".join(draw.choices(alphabet, k=draw.randint(0, 14)))
        cuts = sorted(draw.choices(range(len(text) + 1), k=draw.randint(0, 6)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert run(stop, pieces) == search(stop, text), (stop, pieces)


def test_held_text_never_grows_beyond_the_stop_strings() -> None:
    draw = random.Random(5)
    stop = ["abab\n", "bbaabb#"]
    matcher = StopStringMatcher(stop)
    given = 0
    released = 0
    for _ in range(5000):
        piece = "".join(draw.choices("ab", k=3))
        given += len(piece)
        released += len(matcher.feed(piece))
        assert given - released < max(map(len, stop))
