"""Typed access to what a checkpoint says of itself; every error names the key and what it held.

Serves GGUF's keys and config.json alike. Knows no key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from edge_runtime.errors import SourceFormatError


class Values:
    """A map of plain values.

    Args:
        values: the map; None stands for absence.
        prefix: what every key begins with, such as ``llama.``.
    """

    def __init__(self, values: Mapping[str, Any], prefix: str = "") -> None:
        self._values = values
        self._prefix = prefix

    def __contains__(self, key: str) -> bool:
        return self._values.get(self._prefix + key) is not None

    def integer(self, key: str, *, default: int | None = None) -> int:
        """A whole number above 0; 0 itself where that is the default."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
            raise SourceFormatError(
                f"{self._prefix}{key} should be a whole number, found {_shown(value)}"
            )
        if value == 0 and default != 0:
            raise SourceFormatError(f"{self._prefix}{key} is 0")
        return value

    def number(self, key: str, *, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise SourceFormatError(
                f"{self._prefix}{key} should be a number, found {_shown(value)}"
            )
        if not math.isfinite(value) or value <= 0:
            raise SourceFormatError(f"{self._prefix}{key} is {value}")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """As :meth:`number`, or None where there is none."""
        return self.number(key) if key in self else None

    def text(self, key: str, *, default: str | None = None) -> str:
        """A string."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise SourceFormatError(
                f"{self._prefix}{key} should be a string, found {_shown(value)}"
            )
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise SourceFormatError(
                f"{self._prefix}{key} should be true or false, found {_shown(value)}"
            )
        return value

    def numbers(self, key: str, *, length: int) -> list[float]:
        """A list of ``length`` finite numbers above 0."""
        value = self._list(key, length)
        for number in value:
            plain = isinstance(number, (int, float)) and not isinstance(number, bool)
            if not plain or not math.isfinite(number) or number <= 0:
                raise SourceFormatError(f"{self._prefix}{key} holds {_shown(number)}")
        return [float(number) for number in value]

    def flags(self, key: str, *, length: int) -> list[bool]:
        """A list of ``length`` of true, false, 1 or 0."""
        value = self._list(key, length)
        if any(item not in (0, 1) for item in value):
            raise SourceFormatError(f"{self._prefix}{key} should hold only 0 and 1")
        return [bool(item) for item in value]

    def texts(self, key: str, *, length: int) -> list[str]:
        """A list of ``length`` strings."""
        value = self._list(key, length)
        if not all(isinstance(item, str) for item in value):
            raise SourceFormatError(f"{self._prefix}{key} should hold only strings")
        return value

    def inner(self, key: str) -> Values | None:
        """The object under a key, or None where there is none."""
        value = self._values.get(self._prefix + key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise SourceFormatError(
                f"{self._prefix}{key} should be an object, found {_shown(value)}"
            )
        return Values(value)

    def with_default(self, key: str, value: Any) -> Values:
        """The same values, and one more where the key has none."""
        if key in self:
            return self
        return Values({**self._values, self._prefix + key: value}, self._prefix)

    def _list(self, key: str, length: int) -> list[Any]:
        value = self._get(key, None)
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if not isinstance(value, list):
            raise SourceFormatError(f"{self._prefix}{key} should be a list, found {_shown(value)}")
        if len(value) != length:
            raise SourceFormatError(
                f"{self._prefix}{key} holds {len(value)} values, and there should be {length}"
            )
        return value

    def _get(self, key: str, default: Any) -> Any:
        value = self._values.get(self._prefix + key)
        if value is None:
            value = default
        if value is None:
            raise SourceFormatError(f"the metadata has no {self._prefix}{key}")
        return value


def _shown(value: object) -> str:
    """The value in one line; lists of numbers come as arrays."""
    if isinstance(value, (list, np.ndarray)):
        return f"a list of {len(value)}"
    return f"{value!r:.60}"
