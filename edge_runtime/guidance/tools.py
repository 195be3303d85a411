"""What a caller says of tools: what may be called, and whether something must be.

Knows JSON Schema's bounds; knows no template and no format of calls.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from edge_runtime.errors import GrammarError
from edge_runtime.guidance.schema import checked_schema

MAX_TOOLS = 128
MAX_PARALLEL_CALLS = 16
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


class ToolChoice(str, Enum):
    """Whether the model calls."""

    AUTO = "auto"  # as it likes
    REQUIRED = "required"  # at least one call


@dataclass(frozen=True)
class Tool:
    """A function that the model may call.

    Args:
        name: at most 64 letters, digits, and ``_.-``.
        parameters: the JSON schema of its arguments, an object; checked by :meth:`of`.
        described: all that the caller said of it, as chat templates read it.
    """

    name: str
    parameters: Mapping[str, Any]
    described: Mapping[str, Any] = field(compare=False)

    @classmethod
    def of(cls, name: str, parameters: object, described: Mapping[str, Any]) -> Tool:
        """A tool from what a request says; without parameters it takes none.

        Raises:
            GrammarError: a name that cannot be written, or a schema that cannot be kept.
        """
        if not _NAME.fullmatch(name):
            raise GrammarError(
                f"{name!r:.100} is no name of a tool: at most 64 of A-Z a-z 0-9 _ . -"
            )
        schema = checked_schema({} if parameters is None else parameters)
        if schema.setdefault("type", "object") != "object":
            raise GrammarError(f"the parameters of {name} are no object: {schema['type']!r:.60}")
        # A model that may add what a function does not know does so. Fewer instances, all valid.
        if not {"$ref", "anyOf", "oneOf", "allOf", "patternProperties"} & schema.keys():
            schema.setdefault("additionalProperties", False)
        return cls(name, schema, described)


@dataclass(frozen=True)
class ToolUse:
    """Tools, and how they may be used in one answer.

    Args:
        tools: at least one, at most MAX_TOOLS, with different names.
        choice: whether there must be a call.
        only: the one tool that must be called, or None.
        parallel: whether there may be more than one call.

    Raises:
        GrammarError: too many, two of one name, or ``only`` is none of them.
    """

    tools: tuple[Tool, ...]
    choice: ToolChoice = ToolChoice.AUTO
    only: str | None = None
    parallel: bool = True

    def __post_init__(self) -> None:
        names = [tool.name for tool in self.tools]
        if not 0 < len(names) <= MAX_TOOLS:
            raise GrammarError(f"there are {len(names)} tools; 1 to {MAX_TOOLS} are allowed")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise GrammarError(f"two tools are called {twice}")
        if self.only is not None and self.only not in names:
            raise GrammarError(f"there is no tool called {self.only!r:.100}")

    @property
    def callable(self) -> tuple[Tool, ...]:
        """The tools that a call may name."""
        return tuple(tool for tool in self.tools if self.only in (None, tool.name))

    @property
    def must_call(self) -> bool:
        """Whether an answer without a call is none."""
        return self.only is not None or self.choice is ToolChoice.REQUIRED
