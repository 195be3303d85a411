"""Write a GGUF file again with its matrices in another kind, for peers that want that kind.

What llama.cpp's own requantizer does for the plain kinds, by the gguf package: the peers' fast
kernels are for Q4_0 and Q8_0, and some of them read no other. Metadata, norms and order stay.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edge_runtime.errors import UsageError

KINDS = ("Q4_0", "Q8_0")


def requantize(source: Path, destination: Path, kind: str) -> None:
    """Write ``source`` to ``destination`` with every matrix in ``kind``.

    Raises:
        UsageError: a kind that is not one of KINDS.
    """
    from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
    from gguf.constants import Keys
    from gguf.quants import dequantize, quantize

    if kind not in KINDS:
        raise UsageError(f"cannot requantize to {kind}", hint=f"use one of {', '.join(KINDS)}")
    wanted = GGMLQuantizationType[kind]
    reader = GGUFReader(source)
    writer = GGUFWriter(destination, reader.fields[Keys.General.ARCHITECTURE].contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == Keys.General.ARCHITECTURE:
            continue
        value: Any = 2 if field.name == Keys.General.FILE_TYPE else field.contents()
        kinds = field.types
        if len(kinds) > 1:
            writer.add_key_value(field.name, value, kinds[0], sub_type=kinds[-1])
        else:
            writer.add_key_value(field.name, value, kinds[0])
    for tensor in reader.tensors:
        if len(tensor.shape) < 2:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            continue
        values = dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, quantize(values, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
