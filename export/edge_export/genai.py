"""What lets onnxruntime-genai open a bundle: a second graph with its inputs, and its configuration.

The second graph is the first with other ways in: lengths come from an attention mask, and the
logits are those of the last position. It names the same weights file, so it costs its nodes alone.
Knows no architecture: whatever the decoder is made of stays as it is. The names are those of
onnxruntime-genai's ``genai_config.json``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edge_export.write import write_text
from edge_runtime.bundle import GenerationDefaults, ModelDimensions, TokenizerEntry

GENAI_GRAPH_NAME = "genai.onnx"
GENAI_CONFIG_NAME = "genai_config.json"
_OWN_INPUTS = ("seqlens_k", "total_sequence_length", "logits_indices")
# It reserves the cache for max_length tokens when a generator is made, and zeroes it: what a
# model advertises would be gigabytes.
_DEFAULT_MAX_LENGTH = 2048


def genai_graph(decoder: onnx.ModelProto) -> onnx.ModelProto:
    """The decoder with the inputs that onnxruntime-genai gives.

    ``input_ids`` int64 [B, S], ``attention_mask`` int64 [B, T] with T the tokens held after the
    step, and the cache as before; ``logits`` float32 [B, 1, V] of the last position.

    Args:
        decoder: a graph of the fused dialect; it is not changed.
    """
    model = onnx.ModelProto()
    model.CopyFrom(decoder)
    graph = model.graph
    kept = [value for value in graph.input if value.name not in _OWN_INPUTS]
    mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["B", "T"])
    del graph.input[:]
    graph.input.extend([kept[0], mask, *kept[1:]])
    nodes = list(graph.node)
    del graph.node[:]
    graph.node.extend([*_ways_in(), *nodes])
    graph.initializer.extend(
        numpy_helper.from_array(np.array(value, np.int64), f"genai.{name}")
        for name, value in {"zero": [0], "one": [1], "two": [2]}.items()
    )
    logits = next(value for value in graph.output if value.name == "logits")
    # A fixed 1 is how onnxruntime-genai sees that the graph gives the last position alone.
    logits.type.tensor_type.shape.dim[1].dim_value = 1
    return model


def _ways_in() -> list[onnx.NodeProto]:
    """From the mask and the ids to the three inputs that the decoder reads."""

    def node(operator: str, inputs: list[str], output: str, **attributes: Any) -> onnx.NodeProto:
        name = f"genai.{output}"
        return helper.make_node(operator, inputs, [output], name=name, **attributes)

    int32 = {"to": TensorProto.INT32}
    one = "genai.one"
    return [
        node("ReduceSum", ["attention_mask", one], "genai.held", keepdims=0),
        node("Sub", ["genai.held", one], "genai.last_held"),
        node("Cast", ["genai.last_held"], "seqlens_k", **int32),
        node("Shape", ["attention_mask"], "genai.total", start=1, end=2),
        node("Squeeze", ["genai.total", "genai.zero"], "genai.total_scalar"),
        node("Cast", ["genai.total_scalar"], "total_sequence_length", **int32),
        node("Shape", ["input_ids"], "genai.new", start=1, end=2),
        node("Sub", ["genai.new", one], "genai.last_new"),
        node("Shape", ["input_ids"], "genai.rows", start=0, end=1),
        node("Concat", ["genai.rows", one], "genai.one_a_row", axis=0),
        node("Expand", ["genai.last_new", "genai.one_a_row"], "logits_indices"),
    ]


def write_genai(directory: Path, decoder: onnx.ModelProto, config: dict[str, Any]) -> None:
    """Write the second graph and its configuration beside the first.

    Args:
        directory: the bundle in the making.
        decoder: its graph.
        config: of :func:`genai_config`.
    """
    onnx.save_model(genai_graph(decoder), str(directory / GENAI_GRAPH_NAME))
    text = json.dumps(config, indent=2) + "\n"
    write_text(directory / GENAI_CONFIG_NAME, text)


def genai_config(
    dimensions: ModelDimensions,
    tokenizer: TokenizerEntry,
    generation: GenerationDefaults | None = None,
) -> dict[str, Any]:
    """What ``genai_config.json`` says.

    Args:
        dimensions, tokenizer: the manifest's.
        generation: what the model's makers advise; None says nothing.
    """
    end_tokens = list(tokenizer.end_token_ids)
    context = dimensions.context_length
    first_end = end_tokens[0] if end_tokens else 0
    begin = first_end if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    generation = generation or GenerationDefaults()
    search: dict[str, Any] = {
        "max_length": min(context, _DEFAULT_MAX_LENGTH),
        "past_present_share_buffer": True,
        "do_sample": generation.temperature not in (None, 0.0),
    }
    for name in ("temperature", "top_p", "top_k", "repetition_penalty"):
        value = getattr(generation, name)
        if value is not None:
            search[name] = value
    return {
        "model": {
            # Decoders of every family are driven alike; this name only selects that way.
            "type": "llama",
            "bos_token_id": begin,
            "eos_token_id": end_tokens,
            "pad_token_id": first_end,
            "context_length": context,
            "vocab_size": dimensions.vocabulary_size,
            "decoder": {
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "filename": GENAI_GRAPH_NAME,
                "head_size": dimensions.head_size,
                "hidden_size": dimensions.hidden_size,
                "num_attention_heads": dimensions.heads,
                "num_hidden_layers": dimensions.layers,
                "num_key_value_heads": dimensions.kv_heads,
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                },
                "outputs": {
                    "logits": "logits",
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
            },
        },
        "search": search,
    }
