"""What a family file gives to the registry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edge_export.architectures.gguf import Header
from edge_export.architectures.hugging_face import Config
from edge_export.architectures.spec import DecoderSpec


@dataclass(frozen=True)
class Family:
    """A family of models, by the names that sources have for it.

    Attributes:
        model_types: of config.json.
        from_config: reads a configuration of one of them.
        gguf_names: ``general.architecture`` of GGUF files.
        from_gguf: reads a file of one of them.
    """

    model_types: tuple[str, ...]
    from_config: Callable[[Config], DecoderSpec]
    gguf_names: tuple[str, ...]
    from_gguf: Callable[[Header], DecoderSpec]
