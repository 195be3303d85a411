from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from edge_runtime.errors import InvalidParameterError, RunError
from edge_runtime.generation.beam import BeamParams, BeamSearch, Hypothesis

END = 0
V = 4
Model = Callable[[Sequence[int]], np.ndarray]


def random_model(seed: int) -> Model:
    """Logits (V,) that depend on all tokens before."""

    def logits(tokens: Sequence[int]) -> np.ndarray:
        key = [seed, *(t + 1 for t in tokens)]
        return np.random.default_rng(key).normal(size=V).astype(np.float32) * 2

    return logits


def log_softmax(logits: np.ndarray) -> np.ndarray:
    exact = logits.astype(np.float64)
    return exact - exact.max() - np.log(np.exp(exact - exact.max()).sum())


def search(
    model: Model, params: BeamParams, *, max_tokens: int, end: Sequence[int] = (END,)
) -> list[Hypothesis]:
    found = BeamSearch(params, end_tokens=end, max_tokens=max_tokens)
    while found.beams:
        before = found.beams
        parents = found.advance(np.stack([model(beam.tokens) for beam in before]))
        assert len(parents) == len(found.beams) <= params.width
        for parent, beam in zip(parents, found.beams, strict=True):
            assert beam.tokens[:-1] == before[parent].tokens
    return found.hypotheses()


def all_answers(model: Model, *, max_tokens: int, penalty: float) -> list[tuple[float, list[int]]]:
    """Every answer there is with its score, the best first."""
    answers = []
    for length in range(1, max_tokens + 1):
        for tokens in itertools.product(range(V), repeat=length):
            ends = tokens[-1] == END
            if END in tokens[:-1] or not (ends or length == max_tokens):
                continue
            total = sum(log_softmax(model(tokens[:i]))[t] for i, t in enumerate(tokens))
            answers.append((total / length**penalty, list(tokens)))
    return sorted(answers, key=lambda answer: -answer[0])


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0, -0.5])
@pytest.mark.parametrize("seed", range(4))
def test_a_beam_wide_enough_for_all_finds_the_best_of_all(seed: int, penalty: float) -> None:
    model = random_model(seed)
    expected = all_answers(model, max_tokens=4, penalty=penalty)
    found = search(model, BeamParams(width=len(expected), length_penalty=penalty), max_tokens=4)
    assert [list(h.tokens) for h in found[:10]] == [tokens for _, tokens in expected[:10]]
    assert [h.score for h in found[:10]] == pytest.approx([score for score, _ in expected[:10]])


def plain_beam(model: Model, *, width: int, max_tokens: int) -> list[tuple[float, list[int]]]:
    """The textbook's beam search, to the very end, by sorting everything."""
    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    done: list[tuple[float, list[int]]] = []
    for _ in range(max_tokens):
        every = [
            (total + p, [*tokens, t])
            for total, tokens in beams
            for t, p in enumerate(log_softmax(model(tokens)))
        ]
        every.sort(key=lambda e: -e[0])
        done += [(p / len(t), t) for p, t in every[:width] if t[-1] == END]
        beams = [e for e in every if e[1][-1] != END][:width]
    done += [(p / len(t), t) for p, t in beams]
    return sorted(done, key=lambda e: -e[0])[:width]


@pytest.mark.parametrize("width", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(6))
def test_a_narrow_beam_finds_what_the_plain_algorithm_finds(seed: int, width: int) -> None:
    model = random_model(seed + 100)
    expected = plain_beam(model, width=width, max_tokens=7)
    found = search(model, BeamParams(width=width), max_tokens=7)
    assert [list(h.tokens) for h in found] == [tokens for _, tokens in expected]
    assert [h.score for h in found] == pytest.approx([score for score, _ in expected])


def test_one_beam_without_an_end_is_greedy() -> None:
    model = random_model(5)
    tokens: list[int] = []
    for _ in range(6):
        tokens.append(int(model(tokens).argmax()))
    (found,) = search(model, BeamParams(width=1), max_tokens=6, end=())
    assert list(found.tokens) == tokens
    assert not found.ended


def test_early_stopping_ends_with_the_first_that_have_ended() -> None:
    """A short answer comes first; a longer one is likelier for each of its tokens."""

    def model(tokens: Sequence[int]) -> np.ndarray:
        likely = [[0.3, 0.7, 0, 0], [0.4, 0.6, 0, 0], [0.9, 0.1, 0, 0]][min(2, len(tokens))]
        return np.log(np.array(likely) + 1e-9).astype(np.float32)

    late = search(model, BeamParams(width=2), max_tokens=8)
    early = search(model, BeamParams(width=2, early_stopping=True), max_tokens=8)
    assert (END,) in [h.tokens for h in early]
    assert late[0].tokens == (1, 1, END)
    assert (END,) not in [h.tokens for h in late]


def test_the_length_penalty_chooses_between_short_and_long() -> None:
    def model(tokens: Sequence[int]) -> np.ndarray:
        likely = [[0.45, 0.55, 0, 0], [0.2, 0.8, 0, 0], [0.9, 0.1, 0, 0]][min(2, len(tokens))]
        return np.log(np.array(likely) + 1e-9).astype(np.float32)

    best = {
        penalty: search(model, BeamParams(width=3, length_penalty=penalty), max_tokens=6)[0].tokens
        for penalty in (-1.0, 2.0)
    }
    assert len(best[-1.0]) < len(best[2.0])


def test_tokens_that_cannot_come_never_do() -> None:
    def model(tokens: Sequence[int]) -> np.ndarray:
        return np.array([-np.inf, 1.0, -np.inf, -np.inf], np.float32)

    found = search(model, BeamParams(width=3), max_tokens=3)
    assert [h.tokens for h in found] == [(1, 1, 1)]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_broken_logits_are_a_run_error(bad: float) -> None:
    found = BeamSearch(BeamParams(), end_tokens=(END,), max_tokens=3)
    with pytest.raises(RunError, match="logits"):
        found.advance(np.array([[0.0, bad, 0.0, 0.0]], np.float32))


@pytest.mark.parametrize(
    "fields", [{"width": 0}, {"max_tokens": 0}, {"length_penalty": float("nan")}]
)
def test_numbers_that_cannot_be_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(InvalidParameterError, match=next(iter(fields))):
        BeamParams(**fields)  # type: ignore[arg-type]
