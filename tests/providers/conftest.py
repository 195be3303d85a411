from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from support.fake_onnxruntime import Script, module

from edge_runtime.providers.ort import onnxruntime


@pytest.fixture
def fresh_import() -> Iterator[None]:
    """onnxruntime is imported anew in the test, and once more by whoever needs it afterwards."""
    onnxruntime.cache_clear()
    yield
    onnxruntime.cache_clear()


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, fresh_import: None) -> Script:
    """The script of a stand-in that is installed in onnxruntime's place."""
    script = Script()
    monkeypatch.setitem(sys.modules, "onnxruntime", module(script))
    return script
