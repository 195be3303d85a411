"""A mark for tests that attend to an int8 cache. Knows no model."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from edge_runtime.providers.ort import onnxruntime, version_tuple

OLDEST = "1.27"
_here = find_spec("onnxruntime") is not None
needs_int8_attention = pytest.mark.skipif(
    not _here or version_tuple(onnxruntime().__version__) < version_tuple(OLDEST),
    reason=f"needs onnxruntime {OLDEST}, whose attention reads an int8 cache",
)
