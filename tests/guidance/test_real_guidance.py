"""Schemas on the real model at temperature 1: every answer is an instance, or says that it was cut.

EDGE_RUNTIME_ALL_SCHEMAS=1 runs the whole corpus instead of a few of each kind.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.schemas import PER_KIND, schemas
from support.valid_json import assert_instance

from edge_runtime.engine.engine import Engine
from edge_runtime.engine.request import FinishReason
from edge_runtime.generation.params import SamplingParams
from edge_runtime.guidance.grammar import ContextFree, JsonSchema, Regex

pytest.importorskip("llguidance")
pytestmark = pytest.mark.model

SAMPLED = range(len(schemas())) if os.environ.get("EDGE_RUNTIME_ALL_SCHEMAS") else range(3, 200, 17)


@pytest.fixture(scope="module")
def engine(real_bundle: Path) -> Iterator[Engine]:
    with Engine.load(real_bundle) as loaded:
        yield loaded


def test_answers_are_instances_of_their_schemas_or_say_that_they_were_cut(engine: Engine):
    assert len(schemas()) == 8 * PER_KIND == 200
    stopped = 0
    for number in SAMPLED:
        name, schema = schemas()[number]
        params = SamplingParams(temperature=1.0, seed=number, max_tokens=120)
        prompt = [{"role": "user", "content": f"Give me an example as JSON, of {name}."}]
        answer = engine.generate(prompt, params, grammar=JsonSchema.of(schema))
        if answer.finish_reason is FinishReason.STOP:
            stopped += 1
            assert_instance(answer.text, schema)
        else:
            assert answer.finish_reason is FinishReason.LENGTH, name
    print(f"{stopped} of {len(SAMPLED)} finished, {len(SAMPLED) - stopped} were cut")
    assert stopped > 0.5 * len(SAMPLED)


def test_regexes_and_grammars_hold_on_the_real_model(engine: Engine):
    params = SamplingParams(temperature=1.0, seed=1, max_tokens=40)
    assert engine.generate("Is it? ", params, grammar=Regex("yes|no")).text in ("yes", "no")
    gbnf = ContextFree('root ::= ("x" | "y") "-" [0-9] [0-9]\n')
    text = engine.generate("Say: ", params, grammar=gbnf).text
    assert text[0] in "xy" and text[1] == "-" and text[2:].isdecimal() and len(text) == 4
