"""A model's chat template: messages in, one prompt string out.

Templates are Jinja, rendered with the helpers and the meaning that Hugging Face transformers gives
them, inside :mod:`edge_runtime.text.template_sandbox`. Where the messages that clients send are
not what a template can read, :mod:`edge_runtime.text.messages` adapts them; what it can read, a
trial rendering says, because a template's source has too many ways to say it.

Knows no tokenizer and no model. Rendered text already holds the special tokens: encode it without
adding any.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from edge_runtime.errors import ChatTemplateError, InvalidParameterError
from edge_runtime.text.messages import (
    Content,
    adapted_message,
    as_parts,
    as_read,
    merge_system_message,
)

if TYPE_CHECKING:
    from types import TracebackType

    from jinja2 import Template

    from edge_runtime.text.template_sandbox import TemplateSandbox

TIME_LIMIT_S = 10.0
_OWN_NAMES = ("messages", "tools", "documents", "add_generation_prompt")
_PROBE = "probe7f3a"  # a word no template writes by itself
_RAW_HINT = "--raw sends the text without a template"


class _TemplateStoppedError(ChatTemplateError):
    """The sandbox ended the rendering."""


def no_chat_template(model: str) -> ChatTemplateError:
    """The error for a model that brings no template: none is guessed, a wrong one misleads it."""
    return ChatTemplateError(f"{model} has no chat template", hint=_RAW_HINT)


class ChatTemplate:
    """One chat template, compiled at the first rendering; safe to share between threads.

    Args:
        source: Jinja text.
        special_tokens: ``bos_token``, ``eos_token``, ``unk_token``, ``pad_token`` as the template
            sees them; one that is left out is undefined there, as in transformers.

    Raises:
        ChatTemplateError: the source is empty.
    """

    def __init__(self, source: str, *, special_tokens: Mapping[str, str]) -> None:
        if not source.strip():
            raise no_chat_template("the model")
        self.source = source
        self._special_tokens = dict(special_tokens)
        self._lock = threading.Lock()
        self._reads: Content | None = None
        self._has_system_role: bool | None = None

    def compile(self) -> None:
        """Compile now, say on another thread while the model loads, and not at the first rendering.

        Raises:
            ChatTemplateError: the source is not valid Jinja.
        """
        _ = self._compiled

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for a conversation.

        Args:
            messages: each with ``role`` and ``content`` (a string, None, or text parts), and
                whatever else the template reads (``tool_calls``, ``name``, ...).
            tools: JSON schemas of functions the model may call.
            documents: texts for templates that ground answers in them.
            add_generation_prompt: end with the opening of the assistant's turn.
            extra: further variables (``enable_thinking``, ``date_string``, ...).

        Raises:
            ChatTemplateError: the template is broken, refused the conversation (the message holds
                its own words), left the sandbox, or knows no tools where some are given.
            InvalidParameterError: the messages are not such, a part is not text, or ``extra``
                redefines an argument.
        """
        variables: dict[str, Any] = {**self._special_tokens, **_checked_extra(extra)}
        variables |= {
            "tools": list(tools) if tools else None,
            "documents": list(documents) if documents else None,
            "add_generation_prompt": add_generation_prompt,
        }
        if tools and not self.knows_tools:
            raise ChatTemplateError(
                "the model's chat template knows no tools", hint="leave the tools out"
            )
        trial = _Trial(lambda attempt: self._render(attempt, variables))
        if self._reads is None:
            self._reads = trial.readable_content()
        adapted = [
            adapted_message(message, f"messages[{i}]", self._reads or Content.STRING)
            for i, message in enumerate(messages)
        ]
        if [m["role"] for m in adapted[:2]] == ["system", "user"]:
            if self._has_system_role is None:
                self._has_system_role = trial.has_system_role(self._reads or Content.STRING)
            if self._has_system_role is False:
                adapted = merge_system_message(adapted)
        return self._render(adapted, variables)

    @cached_property
    def knows_tools(self) -> bool:
        """Whether the template reads the variable ``tools``.

        Raises:
            ChatTemplateError: the source is not valid Jinja.
        """
        from jinja2 import nodes

        sandbox, _ = self._compiled
        tree = sandbox.parse(self.source)
        return any(n.name == "tools" and n.ctx == "load" for n in tree.find_all(nodes.Name))

    @cached_property
    def _compiled(self) -> tuple[TemplateSandbox, Template]:
        from jinja2 import TemplateSyntaxError

        from edge_runtime.text.template_sandbox import TemplateSandbox

        sandbox = TemplateSandbox(time_limit_s=TIME_LIMIT_S)
        try:
            return sandbox, sandbox.from_string(self.source)
        except TemplateSyntaxError as exc:
            raise ChatTemplateError(
                f"the model's chat template is broken at line {exc.lineno}: {exc.message}",
                hint=_RAW_HINT,
            ) from exc
        except Exception as exc:  # a hostile source can break the compiler in any way
            raise ChatTemplateError(
                f"the model's chat template is broken: {_described(exc)}", hint=_RAW_HINT
            ) from exc

    def _render(self, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> str:
        from jinja2.exceptions import SecurityError

        from edge_runtime.text.template_sandbox import RaisedByTemplateError

        sandbox, template = self._compiled
        try:
            with self._lock:
                sandbox.start_counting()
                return template.render({**variables, "messages": messages})
        except RaisedByTemplateError as exc:
            raise ChatTemplateError(
                f"the model's chat template refused the conversation: {exc.message}",
                hint=f"change the messages as it asks; {_RAW_HINT}",
            ) from exc
        except SecurityError as exc:
            raise _TemplateStoppedError(
                f"the model's chat template was stopped: {exc.message}", hint=_RAW_HINT
            ) from exc
        except Exception as exc:  # template code can raise anything Python can
            line = _template_line(exc.__traceback__)
            raise ChatTemplateError(
                f"the model's chat template failed{line}: {_described(exc)}",
                hint=f"it may not expect messages of this form; {_RAW_HINT}",
            ) from exc


class _Trial:
    """Finds out by short renderings what a template can read; None where those do not say."""

    def __init__(self, render: Callable[[list[dict[str, Any]]], str]) -> None:
        self._render = render

    def readable_content(self) -> Content | None:
        """In which form the template prints a user's content."""
        string = self._attempt({"role": "user", "content": _PROBE})
        parts = self._attempt({"role": "user", "content": as_parts(_PROBE)})
        if string is not None and _PROBE in string:
            return Content.EITHER if parts == string else Content.STRING
        if parts is not None and _PROBE in parts:
            return Content.PARTS
        return None

    def has_system_role(self, reads: Content) -> bool | None:
        """Whether the template prints a system message."""
        system = {"role": "system", "content": as_read(reads, _PROBE)}
        user = {"role": "user", "content": as_read(reads, "x")}
        both = self._attempt(system, user)
        if both is not None and _PROBE in both:
            return True
        return None if self._attempt(user) is None else False

    def _attempt(self, *messages: dict[str, Any]) -> str | None:
        try:
            return self._render(list(messages))
        except _TemplateStoppedError:
            raise  # it would only use up its allowance again
        except ChatTemplateError:
            return None


def _checked_extra(extra: Mapping[str, Any] | None) -> Mapping[str, Any]:
    for name in extra or {}:
        if name in _OWN_NAMES:
            raise InvalidParameterError(f"{name!r} cannot be set as an extra template variable")
    return extra or {}


def _template_line(traceback: TracebackType | None) -> str:
    """Where in the template an exception arose; Jinja puts its lines into the traceback."""
    line = ""
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == "<template>":
            line = f" at line {traceback.tb_lineno}"
        traceback = traceback.tb_next
    return line


def _described(exc: Exception) -> str:
    words = str(exc).splitlines()
    return words[0][:300] if words else type(exc).__name__
