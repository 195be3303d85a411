"""What tests of several rooms share: the real model, where it was pulled."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REAL_MODEL = "smollm2-135m"


@pytest.fixture(scope="session")
def real_source() -> Path:
    """The real model's GGUF file in the store of whoever runs the tests."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("edge_export.pipeline", reason="needs the export extra")
    from edge_runtime.store.catalog import load_catalog
    from edge_runtime.store.home import Home

    entry = load_catalog().find(REAL_MODEL)
    assert entry is not None
    path = Home.find().catalog_downloads / entry.name / entry.file
    if not path.is_file():
        pytest.skip(f"the model is not here: edge-runtime pull {REAL_MODEL}")
    return path


@pytest.fixture(scope="session")
def real_bundle(real_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real model exported with the default recipe.

    EDGE_RUNTIME_TEST_BUNDLE names one that is there already, which saves exporting it each time.
    """
    if ready := os.environ.get("EDGE_RUNTIME_TEST_BUNDLE"):
        return Path(ready)
    from edge_export.pipeline import export_model

    folder = tmp_path_factory.mktemp("real") / "bundle"
    return export_model(real_source, folder).bundle_path
