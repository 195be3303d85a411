from __future__ import annotations

import pytest
from edge_tools.agreement import Agreement, Parting, equal_tokens, until_end
from edge_tools.compare_llama_cpp import alternate, ratio_of
from edge_tools.peer_llama_cpp import LlamaCpp
from edge_tools.speed import Speeds

from edge_runtime.errors import UsageError


def test_ratios_above_one_mean_that_we_are_faster():
    ratio = ratio_of(
        Speeds(200.0, None, 50.0, 1.0, 1.0, 10.0), Speeds(100.0, None, 100.0, 1.0, 1.0, 30.0)
    )
    assert ratio == Speeds(2.0, None, 0.5, 1.0, 1.0, 3.0)


def test_rounds_alternate_so_that_a_slow_minute_hits_both():
    order: list[str] = []

    def side(name: str) -> Speeds:
        order.append(name)
        return Speeds(1.0, 1.0, 1.0, 1.0, 1.0, 1.0)

    alternate(lambda: side("ours"), lambda: side("theirs"), 3, lambda _: None)
    assert order == ["ours", "theirs"] * 3


def test_equal_tokens_count_from_the_start():
    assert equal_tokens([1, 2, 3], [1, 2, 4]) == 2
    assert equal_tokens([1, 2], [1, 2]) == 2
    assert equal_tokens([9, 2], [1, 2]) == 0


def test_an_answer_is_compared_to_its_end_and_no_further():
    assert until_end([5, 6, 2, 9], {2, 3}) == [5, 6, 2]
    assert until_end([5, 6], {2, 3}) == [5, 6]


@pytest.mark.parametrize(
    "parting, holds",
    [
        (None, True),
        (Parting(24, "a", "b", 1.0, -1.0, 3.0), True),
        (Parting(5, "a", "b", 0.1, -0.1, 0.05), True),
        (Parting(5, "a", "b", 0.1, -0.1, -2.0), False),
    ],
)
def test_an_early_parting_holds_only_on_a_near_tie(parting: Parting | None, holds: bool):
    assert Agreement("?", 32, parting).holds is holds


def test_an_interpreter_without_llama_cpp_is_named(tmp_path):
    with pytest.raises(UsageError, match="cannot import llama_cpp"):
        LlamaCpp(tmp_path / "python")
