"""Which family a chat template belongs to, told by what its source writes.

Knows every family by its marks; knows no model by name.
"""

from __future__ import annotations

from edge_runtime.guidance.bare_tools import GenericFormat, Llama3Format
from edge_runtime.guidance.hermes_tools import OPENING as HERMES_OPENING
from edge_runtime.guidance.hermes_tools import HermesFormat
from edge_runtime.guidance.mistral_tools import ARGUMENTS as MISTRAL_ARGUMENTS
from edge_runtime.guidance.mistral_tools import OPENING as MISTRAL_OPENING
from edge_runtime.guidance.mistral_tools import MistralFormat
from edge_runtime.guidance.tool_format import ToolFormat


def tool_format(template_source: str, *, knows_tools: bool) -> ToolFormat:
    """The format of a model's calls.

    Args:
        template_source: its chat template.
        knows_tools: whether the template reads the variable ``tools``.
    """
    if not knows_tools:
        return GenericFormat()
    if MISTRAL_OPENING in template_source:
        return MistralFormat(named=MISTRAL_ARGUMENTS in template_source)
    if HERMES_OPENING in template_source:
        return HermesFormat()
    if "<|start_header_id|>" in template_source and "parameters" in template_source:
        return Llama3Format()
    return GenericFormat()
