"""What lets a bundle hold its cache in 8 bits: a second graph beside the first.

It names the same weights file, so it costs its nodes and scales alone. Composes measuring and
building; knows no architecture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from edge_export.graph.int8_cache import OLDEST_ONNXRUNTIME, int8_cache_graph
from edge_export.quantize.kv_scales import measure_scales
from edge_runtime.bundle import GraphEntry, ModelDimensions
from edge_runtime.errors import ProviderError

INT8_CACHE_GRAPH_NAME = "decoder-int8-cache.onnx"


def write_int8_cache_graph(
    directory: Path,
    decoder: onnx.ModelProto,
    entry: GraphEntry,
    dimensions: ModelDimensions,
    windows: Sequence[NDArray[np.int64]],
) -> tuple[GraphEntry, ...]:
    """Write the graph over an int8 cache beside the one over a float32 cache.

    Args:
        directory: the bundle in the making, where that graph and its weights are already.
        decoder: that graph.
        entry: what the manifest says of it.
        dimensions: its sizes.
        windows: int64 (tokens,), texts to measure the scales on.

    Returns:
        Its entry; none where there is no usable onnxruntime to measure with.

    Raises:
        ExportError: the graph does not run, or what it computes is not finite.
    """
    try:
        scales = measure_scales(decoder, directory / entry.file, dimensions, windows)
    except ProviderError:
        return ()  # where that is the graph's fault, the check of the bundle says so
    graph = int8_cache_graph(decoder, scales)
    onnx.save_model(graph, str(directory / INT8_CACHE_GRAPH_NAME))
    changed = replace(
        entry,
        file=INT8_CACHE_GRAPH_NAME,
        providers=("CPUExecutionProvider",),
        oldest_onnxruntime=OLDEST_ONNXRUNTIME,
        cache_type="int8",
    )
    return (changed,)
