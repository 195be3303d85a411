"""The Jinja environment of chat templates: transformers' helpers inside a sandbox with limits.

A template comes with a model, so from anyone. Jinja's own sandbox keeps it from attributes that
lead out and from changing what it was given; this one also bounds how long it runs and how much
text it makes, by counting where every template must pass: loop iterations, calls, operators, the
few filters that multiply text, and what is printed.

Imports jinja2, so it is imported only when a template is first compiled. Knows no conversation.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import wraps
from itertools import chain
from typing import Any, cast

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_STRING_CHARACTERS = 16 * 1024 * 1024
MAX_CHARACTERS_MADE = 16 * MAX_STRING_CHARACTERS
_MAX_INTEGER_BITS = 4096
_ITEM = 16  # what anything but a string counts for
_MAX_WIDTH = 100_000  # Jinja's own bound on range()
_WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*(\*|\d{6,})|\{[^}]*\d{6,}")
# Filters whose names no template can write.
_COUNTED = "counted by the sandbox"
_MEASURED = "measured by the sandbox"


class RaisedByTemplateError(TemplateError):
    """The template called raise_exception."""


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """What a chat template is compiled and rendered in; one render at a time.

    Args:
        time_limit_s: most seconds that one render may take.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, *, time_limit_s: float) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, GenerationTag],
            finalize=self._measured,
        )
        self._time_limit_s = time_limit_s
        self.start_counting()
        self.filters["tojson"] = to_json
        self.filters[_COUNTED] = self._count_iterations
        self.filters[_MEASURED] = self._measured
        for name in ("center", "indent", "batch", "slice", "wordwrap", "format"):
            self.filters[name] = _with_narrow_arguments(self.filters[name])
        self.filters["replace"] = _replace
        self.filters["join"] = self._with_counted_join(self.filters["join"])
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        del self.globals["lipsum"]  # makes any amount of text, and no chat needs it

    def start_counting(self) -> None:
        """Begin one render's allowance of time and text."""
        self._deadline = time.monotonic() + self._time_limit_s
        self._characters_left = MAX_CHARACTERS_MADE

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template: nodes.Template = _Counting().visit(super()._parse(source, name, filename))
        return template

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Check what an operator would make, then let it."""
        self._check_time()
        if operator == "+":
            self._charge(_size(left) + _size(right))
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
        elif operator in ("*", "**"):
            self._charge(_size(left) * _repeats(right) + _size(right) * _repeats(left))
            _check_integers(operator, left, right)
        return super().call_binop(context, operator, left, right)

    # The double underscores keep these names apart from a template's keyword arguments.
    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Check the time and, for methods of strings, the size; then call."""
        __self._check_time()
        method = getattr(__obj, "__wrapped__", __obj)  # Jinja wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            __self._check_string_method(owner, method.__name__, args, kwargs)
        result = super().call(__context, __obj, *args, **kwargs)
        __self._charge(_size(result))
        return result

    def _check_string_method(
        self, owner: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if name == "translate":
            raise SecurityError("str.translate is not allowed")
        if name in ("format", "format_map"):
            _check_format(owner)
        _check_widths((*args, *kwargs.values()))
        if name == "replace" and len(args) >= 2:
            self._charge(_length_replaced(owner, str(args[0]), str(args[1])))
        elif name == "join" and args and isinstance(args[0], (list, tuple)):
            self._charge(len(owner) * len(args[0]) + sum(_size(item) for item in args[0]))

    def _with_counted_join(self, join: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(join)
        def counted(context: Any, value: Any, d: str = "", attribute: Any = None) -> Any:
            items = list(value)
            self._charge(len(str(d)) * len(items) + sum(_size(item) for item in items))
            return join(context, items, d, attribute)

        return counted

    def _measured(self, value: Any) -> Any:
        self._charge(_size(value))
        return value

    def _count_iterations(self, items: Iterable[Any] | None) -> Iterator[Any]:
        # None, which Python would not iterate, is no items: templates loop over absent tools.
        for item in () if items is None else items:
            self._check_time()
            yield item

    def _charge(self, characters: int) -> None:
        self._characters_left -= characters
        if characters > MAX_STRING_CHARACTERS or self._characters_left < 0:
            raise SecurityError(f"it made more text than {MAX_STRING_CHARACTERS} characters")

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise SecurityError(f"it ran for more than {self._time_limit_s:g} s")


class GenerationTag(Extension):
    """``{% generation %}...{% endgeneration %}``: marks what the model wrote; prints its body."""

    tags = {"generation"}  # noqa: RUF012  # as the base class declares it

    def parse(self, parser: Parser) -> nodes.Node:
        """Turn the tag into a scope around its body."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Counting(NodeTransformer):
    """Leads loops, ``~`` and literals past the counters; changes nothing that they mean.

    Literals count because a list of the same list twice, nested, prints without end.
    """

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        node.iter = _filter(_COUNTED, node.iter)
        return node

    def visit_List(self, node: nodes.List) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        constant = all(isinstance(item, nodes.Const) for item in node.items)
        return node if constant else _filter(_MEASURED, node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return node if node.ctx != "load" else _filter(_MEASURED, node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _filter(_MEASURED, node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        joined, *others = [_filter("string", part) for part in node.nodes]
        for other in others:
            joined = nodes.Add(joined, other, lineno=node.lineno)
        return joined


def _filter(name: str, node: nodes.Node) -> nodes.Expr:
    return nodes.Filter(cast(nodes.Expr, node), name, [], [], None, None, lineno=node.lineno)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it: no HTML escapes, and every script as it is."""
    _check_widths((indent,))
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: object) -> None:
    raise RaisedByTemplateError(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _with_narrow_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        # The first is what is filtered; a number there is no width.
        _check_widths((*args[1:], *kwargs.values()))
        for text in args:
            if isinstance(text, str):
                _check_format(text)
        return function(*args, **kwargs)

    return checked


def _replace(value: object, old: object, new: object, count: int | None = None) -> str:
    text, found, instead = str(value), str(old), str(new)
    if _length_replaced(text, found, instead) > MAX_STRING_CHARACTERS:
        raise SecurityError(f"it made more text than {MAX_STRING_CHARACTERS} characters")
    return text.replace(found, instead, -1 if count is None else count)


def _length_replaced(text: str, old: str, new: str) -> int:
    return len(text) + text.count(old) * max(0, len(new) - len(old))


def _size(value: object, known: dict[int, int] | None = None) -> int:
    """About how many characters a value prints as, without walking twice what it holds twice."""
    if isinstance(value, str):
        return len(value)
    if not isinstance(value, (list, tuple, Mapping)):
        return _ITEM + (value.bit_length() // 3 if isinstance(value, int) else 0)
    known = {} if known is None else known
    if id(value) not in known:
        parts = chain(value.keys(), value.values()) if isinstance(value, Mapping) else value
        known[id(value)] = _ITEM + sum(_size(part, known) for part in parts)
    return known[id(value)]


def _repeats(value: object) -> int:
    return max(0, value) if isinstance(value, int) else 0


def _check_integers(operator: str, left: object, right: object) -> None:
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length()
        if (bits + right.bit_length() if operator == "*" else bits * right) > _MAX_INTEGER_BITS:
            raise SecurityError("it made a number larger than any use")


def _check_format(text: str) -> None:
    if _WIDE_FORMAT.search(text):
        raise SecurityError("it asked for a field wider than 100000 characters")


def _check_widths(values: Iterable[object]) -> None:
    if any(isinstance(value, int) and value > _MAX_WIDTH for value in values):
        raise SecurityError(f"it asked for a field wider than {_MAX_WIDTH} characters")
