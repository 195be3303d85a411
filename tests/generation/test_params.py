import math

import numpy as np
import pytest

from edge_runtime.bundle import GenerationDefaults
from edge_runtime.errors import InvalidParameterError
from edge_runtime.generation.params import SamplingParams, sampling_params

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 1.0),
        ("max_tokens", True),
        ("max_tokens", "5"),
        ("temperature", -0.1),
        ("temperature", 100.1),
        ("temperature", NAN),
        ("temperature", INF),
        ("temperature", 10**400),
        ("temperature", "1"),
        ("temperature", None),
        ("temperature", True),
        ("top_k", -1),
        ("top_k", 2.0),
        ("top_k", False),
        ("top_p", 0),
        ("top_p", 1.01),
        ("top_p", NAN),
        ("min_p", -0.01),
        ("min_p", 1.01),
        ("typical_p", 0.0),
        ("typical_p", 2),
        ("repetition_penalty", 0),
        ("repetition_penalty", -1),
        ("repetition_penalty", INF),
        ("presence_penalty", 2.1),
        ("presence_penalty", -2.1),
        ("frequency_penalty", 2.1),
        ("frequency_penalty", NAN),
        ("seed", -1),
        ("seed", 2**64),
        ("seed", 1.5),
        ("seed", True),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", "12"),
        ("stop_token_ids", [1.0]),
        ("stop_token_ids", 5),
        ("ignore_eos", 1),
        ("ignore_eos", "false"),
        ("logprobs", -1),
        ("logprobs", 21),
        ("logprobs", True),
        ("logit_bias", [(1, 2)]),
        ("logit_bias", {1: 101}),
        ("logit_bias", {1: -101}),
        ("logit_bias", {1: NAN}),
        ("logit_bias", {-1: 0}),
        ("logit_bias", {"1": 0}),
        ("logit_bias", {True: 0}),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", [1]),
        ("stop", b"a"),
        ("stop", ["a"] * 17),
    ],
)
def test_a_value_out_of_range_or_kind_is_refused_by_field(field, value):
    with pytest.raises(InvalidParameterError) as caught:
        SamplingParams(**{field: value})
    assert field in caught.value.message
    assert "\n" not in caught.value.message


def test_the_message_carries_the_value_and_what_is_allowed():
    with pytest.raises(InvalidParameterError, match=r"^top_p is 1\.5; it must be above 0 to 1$"):
        SamplingParams(top_p=1.5)


def test_a_long_value_is_shortened_in_the_message():
    with pytest.raises(InvalidParameterError) as caught:
        SamplingParams(seed="x" * 10_000)
    assert len(caught.value.message) < 150


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0),
        ("temperature", 100),
        ("top_p", 1),
        ("min_p", 0),
        ("min_p", 1),
        ("presence_penalty", -2),
        ("frequency_penalty", 2),
        ("seed", 0),
        ("seed", 2**64 - 1),
        ("logprobs", 0),
        ("logprobs", 20),
        ("max_tokens", 1),
        ("logit_bias", {0: -100, 5: 100}),
        ("stop", ("a",) * 16),
    ],
)
def test_the_ends_of_each_range_are_allowed(field, value):
    assert getattr(SamplingParams(**{field: value}), field) == value


def test_one_plain_stop_string_is_taken_as_the_only_one():
    assert SamplingParams(stop="END").stop == ("END",)


def test_lists_become_tuples_and_numpy_numbers_python_ones():
    params = SamplingParams(
        stop=["a", "b"],
        stop_token_ids=np.array([1, 2]),
        top_k=np.int64(5),
        temperature=np.float32(0.5),
    )
    assert params.stop == ("a", "b")
    assert params.stop_token_ids == (1, 2)
    assert type(params.top_k) is int
    assert type(params.stop_token_ids[0]) is int
    assert type(params.temperature) is float


def test_a_mapping_changed_afterwards_does_not_change_the_parameters():
    bias = {1: 2.0}
    params = SamplingParams(logit_bias=bias)
    bias[1] = math.nan
    assert params.logit_bias == {1: 2.0}


def test_a_silent_request_takes_the_models_defaults_and_then_openais():
    params = sampling_params(GenerationDefaults(temperature=0.2, top_k=40), temperature=None)
    assert (params.temperature, params.top_k) == (0.2, 40)
    assert (params.top_p, params.max_tokens, params.seed) == (1.0, None, None)


def test_a_request_wins_over_the_models_defaults_even_with_zero():
    params = sampling_params(GenerationDefaults(temperature=0.2, top_k=40), temperature=0, top_k=0)
    assert (params.temperature, params.top_k) == (0, 0)


def test_an_unknown_parameter_is_refused_by_name():
    with pytest.raises(InvalidParameterError, match="temprature") as caught:
        sampling_params(GenerationDefaults(), temprature=1)
    assert "temperature" in (caught.value.hint or "")
