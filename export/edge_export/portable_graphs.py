"""Portable graphs beside the fused one in a bundle: made, checked by running, and listed.

Which ones a device wants comes from its target. They share the fused graph's weights file where
their precision allows. Knows the bundle's files; the rewriting is in graph/portable.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from edge_export.graph.portable import PortableForm, load_fused, portable_decoder
from edge_export.mobile_report import mobile_usability
from edge_export.write import WeightsFile
from edge_runtime.bundle import GraphEntry


@dataclass(frozen=True)
class PortableRequest:
    """Portable graphs that a device wants.

    Args:
        providers: onnxruntime's names; those that the graphs are for.
        half: float16 instead of blocks and float32.
        chunk: tokens of a prompt in a run, and ``capacity`` rows of the cache, where every shape is
            fixed: then there is one graph for chunks and one for single tokens. None for one graph
            of open shapes.
        capacity: see ``chunk``.
    """

    providers: tuple[str, ...]
    half: bool = False
    chunk: int | None = None
    capacity: int | None = None


def write_portable_graphs(
    directory: Path, fused: GraphEntry, requests: Sequence[PortableRequest]
) -> tuple[GraphEntry, ...]:
    """Make the graphs of all requests; those that want the same share them.

    Args:
        directory: of the bundle, with the fused graph and its weights in it.
        fused: that graph.
        requests: what devices want.

    Raises:
        UnsupportedModelError: the model has something without a portable form.
    """
    model = load_fused(directory / fused.file)
    merged: dict[tuple[bool, int | None, int | None], list[str]] = {}
    for request in requests:
        key = (request.half, request.chunk, request.capacity)
        merged.setdefault(key, []).extend(request.providers)
    entries: list[GraphEntry] = []
    for half in sorted({key[0] for key in merged}):
        base = f"decoder-portable-{'float16' if half else 'float32'}"
        with _SharedWeightsFile(directory / f"{base}.weights") as file:
            for (precise, chunk, capacity), providers in merged.items():
                if precise == half:
                    fixed = chunk is not None
                    forms = [
                        PortableForm(n, capacity, half) for n in ((chunk, 1) if fixed else (None,))
                    ]
                    for form in forms:
                        entry = _entry(fused, base, form, providers)
                        made = portable_decoder(model, directory, file, form)
                        onnx.save_model(made, str(directory / entry.file))
                        told = mobile_usability(made) if fixed else ()
                        entries.append(replace(entry, usability=tuple(map(str, told))))
    return tuple(entries)


def _entry(
    fused: GraphEntry, base: str, form: PortableForm, providers: Sequence[str]
) -> GraphEntry:
    shape = f"-{form.tokens}x{form.capacity}" if form.tokens else ""
    return GraphEntry(
        file=f"{base}{shape}.onnx",
        weights=(*fused.weights, f"{base}.weights"),
        dialect="portable",
        precision="float16" if form.half else "float32",
        providers=tuple(dict.fromkeys(providers)),
        oldest_onnxruntime=fused.oldest_onnxruntime,
        tokens=form.tokens,
        capacity=form.capacity,
    )


class _SharedWeightsFile(WeightsFile):
    """A weights file that keeps an array once that two graphs bring."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._extents: dict[tuple[str, bytes], tuple[int, int]] = {}

    def append(self, array: NDArray[Any]) -> tuple[int, int]:
        """As `WeightsFile.append`."""
        data = np.ascontiguousarray(array)
        key = (str(data.dtype), hashlib.sha256(data.tobytes()).digest())
        if key not in self._extents:
            self._extents[key] = super().append(data)
        return self._extents[key]
