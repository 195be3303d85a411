"""How the engine keeps an answer to its constraint, whatever the model would rather say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from support.scripted_engine import END, GREEDY, TOKENIZER, make_engine

from edge_runtime.engine.core import EngineCore
from edge_runtime.engine.driver import EngineDriver
from edge_runtime.engine.request import Delta, FinishReason
from edge_runtime.errors import EdgeRuntimeError, GrammarError
from edge_runtime.generation.params import SamplingParams
from edge_runtime.guidance.constraint import Mask, mask_of

SIZE = TOKENIZER.vocabulary_size


class OneOf:
    """Allows a few texts, one of which may be a part of another."""

    def __init__(self, *texts: str, may_be_anything_first: int = 0) -> None:
        self._left = [TOKENIZER.encode(text) for text in texts]
        self._free = may_be_anything_first

    def allowed_tokens(self) -> Mask | None:
        if self._free:
            return None
        ids = {text[0] if text else END for text in self._left}
        if not ids:
            raise GrammarError("nothing can come")
        return mask_of(ids, SIZE)

    def accept(self, token_id: int) -> None:
        if self._free:
            self._free -= 1
            return
        self._left = [text[1:] for text in self._left if text[:1] == [token_id]]

    @property
    def is_complete(self) -> bool:
        return not self._free and self._left == [[]]


def wanting(text: str) -> EngineCore:
    """An engine whose model wants to say ``text`` over and over, wherever it is."""
    wanted = [*TOKENIZER.encode(text)]
    engine, _ = make_engine(lambda seen: wanted[len(seen) % len(wanted)])
    return engine


def answer(
    engine: EngineCore, constraint: OneOf, params: SamplingParams = GREEDY
) -> tuple[str, Delta]:
    deltas: list[Delta | EdgeRuntimeError] = []
    engine.submit([1], params, emit=deltas.append, constraint=constraint)
    while engine.has_work:
        engine.step()
    for delta in deltas:
        if isinstance(delta, EdgeRuntimeError):
            raise delta
    said = [delta for delta in deltas if isinstance(delta, Delta)]
    return "".join(delta.text for delta in said), said[-1]


def test_only_what_the_constraint_allows_is_said():
    text, last = answer(wanting("zzzz"), OneOf("cat", "dog"))
    assert text == "cat"  # equal logits go to the lowest id
    assert last.finish_reason is FinishReason.STOP


def test_the_model_chooses_among_what_is_allowed():
    assert answer(wanting("dog"), OneOf("cat", "dog"))[0] in ("cat", "dog")
    engine, _ = make_engine(lambda seen: ord("d"))
    assert answer(engine, OneOf("cat", "dog"))[0] == "dog"


def test_a_complete_answer_ends_without_another_step():
    engine, runner = make_engine(lambda seen: ord("d"))
    assert answer(engine, OneOf("dog"))[0] == "dog"
    assert len(runner.steps) == 3


def test_the_end_token_is_chosen_only_where_the_constraint_has_it():
    engine, _ = make_engine(lambda seen: END)
    text, last = answer(engine, OneOf("do", "dog"))
    assert (text, last.finish_reason) == ("do", FinishReason.STOP)


def test_an_answer_cut_inside_its_constraint_says_length():
    params = SamplingParams(temperature=0.0, max_tokens=2)
    text, last = answer(wanting("z"), OneOf("cat"), params)
    assert (text, last.finish_reason) == ("ca", FinishReason.LENGTH)


def test_an_answer_that_is_complete_at_the_last_token_it_may_have_says_stop():
    params = SamplingParams(temperature=0.0, max_tokens=3)
    assert answer(wanting("z"), OneOf("cat"), params)[1].finish_reason is FinishReason.STOP


def test_an_answer_may_be_anything_until_its_constraint_says_otherwise():
    engine, _ = make_engine(lambda seen: ord("z"))
    assert answer(engine, OneOf("cat", may_be_anything_first=2))[0] == "zzcat"


def test_drawn_tokens_are_allowed_ones_whatever_the_filters():
    for seed in range(5):
        params = SamplingParams(seed=seed, top_k=3, top_p=0.9, min_p=0.1, repetition_penalty=1.3)
        assert answer(wanting("zzzz"), OneOf("cat", "dog"), params)[0] in ("cat", "dog")


def test_logprobs_are_those_of_the_model_before_anything_was_forbidden():
    params = SamplingParams(temperature=0.0, logprobs=1)
    engine, _ = make_engine(lambda seen: ord("z"))
    deltas: list[Delta] = []
    engine.submit([1], params, emit=deltas.append, constraint=OneOf("cat"))  # type: ignore[arg-type]
    engine.step()
    entry = deltas[0].logprobs[0]
    assert entry.top[0].token_id == ord("z")
    assert entry.chosen.token_id == ord("c")
    assert entry.chosen.logprob == pytest.approx(-np.log(SIZE - 1 + np.e), abs=1e-3)


def test_a_constraint_that_fails_ends_its_own_request_alone():
    engine, _ = make_engine(lambda seen: ord("z"))
    failed: list[object] = []
    kept: list[Delta] = []
    engine.submit([1], GREEDY, emit=failed.append, constraint=OneOf())
    params = SamplingParams(temperature=0.0, max_tokens=3)
    engine.submit([1], params, emit=kept.append)  # type: ignore[arg-type]
    while engine.has_work:
        engine.step()
    assert isinstance(failed[-1], GrammarError)
    assert "".join(delta.text for delta in kept) == "zzz"


def test_a_driver_passes_the_constraint_on():
    def script(seen: Sequence[int]) -> int:
        return ord("z")

    engine, _ = make_engine(script)
    with EngineDriver(engine) as driver:
        handle = driver.submit([1], GREEDY, constraint=OneOf("cat"))
        assert "".join(delta.text for delta in handle) == "cat"
