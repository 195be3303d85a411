"""The one tree of errors, and what each means for an exit code.

EdgeRuntimeError
├── UsageError               the caller asked for something that makes no sense (exit code 2)
│   ├── InvalidParameterError    a sampling or engine parameter out of its range
│   ├── PromptTooLongError       more tokens than the context holds
│   ├── MemoryCapError           a memory cap that the model does not fit in
│   ├── GrammarError             a schema, regex or grammar that an answer cannot be held to
│   ├── UnknownProviderError     a name that no execution provider has
│   ├── UnknownTargetError       a name that no device profile has
│   └── EmptyPromptError         nothing to evaluate
├── ModelNotFoundError       MODEL is no file, no directory, no name in the store or catalog
├── BundleError              a bundle that cannot be trusted or read
│   ├── ManifestError            manifest.json is missing, malformed or points outside
│   └── IntegrityError           a file's size or sha256 is not what the manifest says
├── ExportError              a source that cannot become a bundle
│   ├── SourceFormatError        truncated, not the format it claims, or inconsistent
│   ├── UnsupportedModelError    a well-formed source of a kind this version has no code for
│   └── StorageError             the disk is full or not writable
├── PrefixFileError          a saved prompt that is damaged, or no such file
│   └── PrefixMismatchError      one of another model, recipe, provider or version
├── TokenizerError           a tokenizer that cannot be built, or text that it cannot encode
├── ChatTemplateError        the model's template is broken, or refused the conversation
├── ProviderError            no onnxruntime, or no execution provider that runs the graph
├── TargetError              a device profile that cannot be read
├── RunError                 onnxruntime failed inside a step
├── QueueFullError           as many requests wait as may; try again later
└── DownloadError            pull could not bring a model

Knows no other module: foreign exceptions are translated where they are caught, once, with
``raise X(...) from exc``.
"""

from __future__ import annotations


class EdgeRuntimeError(Exception):
    """Base of every error that a user may see.

    Args:
        message: one line that carries the offending value.
        hint: what to do about it, one line; printed as ``hint: ...``.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(EdgeRuntimeError):
    """The caller asked for something that makes no sense."""

    exit_code = 2


class InvalidParameterError(UsageError):
    """A parameter is out of its range or of the wrong type."""


class PromptTooLongError(UsageError):
    """The prompt holds more tokens than the context.

    Args:
        prompt_tokens: tokens in the prompt.
        context_length: tokens that the context holds.
    """

    def __init__(self, prompt_tokens: int, context_length: int) -> None:
        super().__init__(
            f"the prompt has {prompt_tokens} tokens, and the context holds {context_length}",
            hint="shorten the prompt, or raise --context up to the model's own limit",
        )
        self.prompt_tokens = prompt_tokens
        self.context_length = context_length


class GrammarError(UsageError):
    """A schema, regex or grammar that an answer cannot be held to: wrong, too large, unsupported."""


class EmptyPromptError(UsageError):
    """There is nothing to evaluate."""


class MemoryCapError(UsageError):
    """The model does not fit in the memory cap, however small its context.

    Args:
        cap: bytes allowed.
        smallest_cap: bytes that would do.
        source: where the cap comes from, if nobody asked for it.
    """

    def __init__(self, cap: int, smallest_cap: int, *, source: str | None = None) -> None:
        where = "" if source is None else f" ({source})"
        larger = f"--memory-cap {-(-smallest_cap // 10**6)}M"
        if source is not None:
            larger = "free some memory, --memory-cap none to try all the same"
        super().__init__(
            f"the model does not fit in {cap / 1e6:.0f} MB{where}: "
            f"it needs {smallest_cap / 1e6:.0f} MB with the shortest context",
            hint=f"{larger}, a smaller model, or --quant int4",
        )
        self.cap = cap
        self.smallest_cap = smallest_cap


class UnknownProviderError(UsageError):
    """No execution provider is called so."""


class UnknownTargetError(UsageError):
    """No device profile is called so."""


class ModelNotFoundError(EdgeRuntimeError):
    """MODEL names nothing that exists."""


class BundleError(EdgeRuntimeError):
    """A bundle cannot be trusted or read."""


class ManifestError(BundleError):
    """manifest.json is missing, malformed, or points outside the bundle."""


class IntegrityError(BundleError):
    """A file is not the one that the manifest describes."""


class PrefixFileError(EdgeRuntimeError):
    """A saved prompt is damaged, or the file is none."""


class PrefixMismatchError(PrefixFileError):
    """A saved prompt belongs to something else than what is running.

    Args:
        message: as for all.
        differing: the fields of its key that differ.
    """

    def __init__(self, message: str, *, differing: tuple[str, ...]) -> None:
        super().__init__(message, hint="save it again with this model, on this machine")
        self.differing = differing


class ExportError(EdgeRuntimeError):
    """A source cannot become a bundle."""


class SourceFormatError(ExportError):
    """The source is truncated, inconsistent, or not the format it claims to be."""


class UnsupportedModelError(ExportError):
    """The source is well formed, but of a kind this version has no code for."""


class StorageError(ExportError):
    """The disk is full or cannot be written."""


class TokenizerError(EdgeRuntimeError):
    """A tokenizer cannot be built, or a text cannot be encoded."""


class ChatTemplateError(EdgeRuntimeError):
    """A chat template is broken, or refused the conversation."""


class ProviderError(EdgeRuntimeError):
    """No onnxruntime is importable, or no execution provider runs the graph."""


class TargetError(EdgeRuntimeError):
    """A device profile cannot be read."""


class RunError(EdgeRuntimeError):
    """onnxruntime failed inside a step."""


class QueueFullError(EdgeRuntimeError):
    """As many requests wait as may.

    Args:
        waiting: requests that wait.
        max_waiting: how many may.
    """

    def __init__(self, waiting: int, max_waiting: int) -> None:
        super().__init__(
            f"{waiting} requests wait already, and {max_waiting} may",
            hint="try again later, or raise max_waiting",
        )
        self.waiting = waiting
        self.max_waiting = max_waiting


class DownloadError(EdgeRuntimeError):
    """A model could not be brought."""
