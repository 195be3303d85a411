"""What the wheel holds, and that all of it is Python 3.10."""

from __future__ import annotations

import ast
import email
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"edge_runtime", "edge_export", "edge_targets", "edge_tools"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built by the back end in this environment: no network."""
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    (file,) = out.glob("*.whl")
    assert file.name.endswith("-py3-none-any.whl")
    return zipfile.ZipFile(file)


def _metadata(wheel: zipfile.ZipFile) -> email.message.Message:
    (name,) = [n for n in wheel.namelist() if n.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(wheel.read(name))


def test_the_wheel_holds_the_four_packages_and_nothing_else(wheel: zipfile.ZipFile):
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {t for t in tops if not t.endswith(".dist-info")} == PACKAGES


def test_the_wheel_holds_every_tracked_module_and_data_file(wheel: zipfile.ZipFile):
    names = set(wheel.namelist())
    for package in (
        "edge_runtime",
        "export/edge_export",
        "targets/edge_targets",
        "tools/edge_tools",
    ):
        top = ROOT / package
        files = [f for f in top.rglob("*") if f.is_file() and "__pycache__" not in f.parts]
        assert files
        missing = {f.relative_to(top.parent).as_posix() for f in files} - names
        assert not missing
    assert {"edge_runtime/store/catalog.toml", "edge_runtime/py.typed"} <= names


def test_the_wheel_holds_no_tests_and_no_leftovers(wheel: zipfile.ZipFile):
    wrong = [n for n in wheel.namelist() if re.search(r"(^|/)(tests?|__pycache__)/|\.pyc$", n)]
    assert not wrong


def test_the_wheel_carries_the_licence(wheel: zipfile.ZipFile):
    (name,) = [n for n in wheel.namelist() if n.endswith("/LICENSE")]
    assert b"Apache License" in wheel.read(name)
    assert _metadata(wheel)["License-Expression"] == "Apache-2.0"


def test_the_base_install_forces_no_onnxruntime_distribution(wheel: zipfile.ZipFile):
    requirements = _metadata(wheel).get_all("Requires-Dist") or []
    base = [r for r in requirements if "extra ==" not in r]
    assert base
    assert not [r for r in base if r.lower().startswith(("onnxruntime", "onnx", "gguf", "torch"))]
    extras = set(_metadata(wheel).get_all("Provides-Extra") or [])
    assert {"cpu", "gpu", "openvino", "export", "serve", "optimum", "test", "all"} <= extras


def test_the_wheel_installs_the_command(wheel: zipfile.ZipFile):
    (name,) = [n for n in wheel.namelist() if n.endswith("/entry_points.txt")]
    assert b"edge-runtime = edge_runtime.cli.entry:run_program" in wheel.read(name)


def test_every_file_parses_as_the_oldest_supported_python():
    files = [
        file
        for folder in ("edge_runtime", "export", "targets", "tools", "tests")
        for file in (ROOT / folder).rglob("*.py")
    ]
    assert len(files) > 10
    for file in files:
        ast.parse(file.read_text(encoding="utf-8"), filename=str(file), feature_version=(3, 10))
