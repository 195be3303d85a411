from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from edge_runtime.typed_data import DataError, decode, encode


@dataclass(frozen=True)
class Wheel:
    size: float
    maker: str | None = None


@dataclass(frozen=True)
class Cart:
    name: str
    seats: int
    covered: bool
    wheels: tuple[Wheel, ...] = ()
    prices: Mapping[str, int] = field(default_factory=dict)


PLAIN = {
    "name": "red",
    "seats": 2,
    "covered": True,
    "wheels": [{"size": 1.5, "maker": "us"}, {"size": 2}],
    "prices": {"new": 10, "old": 3},
}
CART = Cart("red", 2, True, (Wheel(1.5, "us"), Wheel(2.0)), {"new": 10, "old": 3})


def test_nested_data_becomes_dataclasses_and_whole_numbers_floats() -> None:
    cart = decode(Cart, PLAIN)
    assert cart == CART
    assert isinstance(cart.wheels[1].size, float)


def test_what_is_encoded_decodes_to_the_same_even_through_json() -> None:
    assert decode(Cart, json.loads(json.dumps(encode(CART)))) == CART


def test_none_is_left_out_when_encoding_and_missing_means_the_default() -> None:
    assert encode(Wheel(1.0)) == {"size": 1.0}
    assert decode(Cart, {"name": "x", "seats": 1, "covered": False}).wheels == ()


def test_an_explicit_null_is_none_where_none_is_allowed() -> None:
    assert decode(Wheel, {"size": 1.0, "maker": None}).maker is None


def test_unknown_keys_are_ignored() -> None:
    assert decode(Wheel, {"size": 1.0, "colour": "blue"}) == Wheel(1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seats": "two"}, r"seats should be int, found 'two'"),
        ({"seats": 2.0}, r"seats should be int, found 2\.0"),
        ({"seats": True}, r"seats should be int, found True"),
        ({"covered": 1}, r"covered should be bool, found 1"),
        ({"name": None}, r"name should be str, found None"),
        ({"wheels": {}}, r"wheels should be a list"),
        ({"wheels": [{"size": 1}, {"size": "big"}]}, r"wheels\[1\]\.size should be float"),
        ({"wheels": [{"size": True}]}, r"wheels\[0\]\.size should be float, found True"),
        ({"wheels": [{"size": 10**400}]}, r"wheels\[0\]\.size should be float"),
        ({"wheels": [{}]}, r"wheels\[0\]\.size is missing"),
        ({"wheels": [3]}, r"wheels\[0\] should be a table, found 3"),
        ({"prices": [1]}, r"prices should be a table"),
        ({"prices": {"new": None}}, r"prices\.new should be int, found None"),
    ],
)
def test_what_is_wrong_is_named_by_its_path_and_value(
    change: dict[str, object], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        decode(Cart, {**PLAIN, **change})


def test_the_top_itself_may_be_wrong() -> None:
    with pytest.raises(DataError, match="the data should be a table, found 3"):
        decode(Cart, 3)


def test_a_long_value_is_shown_in_part() -> None:
    with pytest.raises(DataError) as caught:
        decode(Wheel, {"size": "x" * 5000})
    assert len(str(caught.value)) < 120
