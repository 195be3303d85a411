"""Who may import whom, as docs/architecture.md draws it; and that importing the base is cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "edge_runtime": ROOT / "edge_runtime",
    "edge_export": ROOT / "export" / "edge_export",
    "edge_targets": ROOT / "targets" / "edge_targets",
    "edge_tools": ROOT / "tools" / "edge_tools",
}
MAKERS = {"edge_export", "edge_targets", "edge_tools"}
CHECKPOINT_LIBRARIES = {"torch", "transformers", "onnx", "gguf"}
NETWORK = {
    "urllib.request", "http.client", "http.server", "socket", "ftplib", "smtplib", "ssl", "asyncio",
    "requests", "httpx", "aiohttp", "huggingface_hub", "fastapi", "uvicorn",
}  # fmt: skip


@dataclass(frozen=True)
class Import:
    """One imported module: by which file, at which line, and whether only inside a function."""

    file: Path
    line: int
    module: str
    lazy: bool

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} imports {self.module}"

    def is_of(self, *modules: str) -> bool:
        return any(self.module == m or self.module.startswith(m + ".") for m in modules)


def _is_type_checking(test: ast.expr) -> bool:
    return "TYPE_CHECKING" in ast.dump(test)


def _package_of(file: Path, package: str) -> list[str]:
    inside = file.relative_to(PACKAGES[package]).with_suffix("").parts
    return [package, *inside[:-1]]


def _names(node: ast.AST, here: list[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = here[: len(here) - node.level + 1] if node.level else []
        start = ".".join([*base, *([node.module] if node.module else [])])
        # "from a import b" may import the module a.b: both are seen.
        yield from (f"{start}.{alias.name}" for alias in node.names)
    elif (
        isinstance(node, ast.Call)
        and ast.unparse(node.func) in {"importlib.import_module", "import_module", "__import__"}
        and node.args
        and isinstance(node.args[0], ast.Constant)
    ):
        yield str(node.args[0].value)


def _walk(node: ast.AST, lazy: bool) -> Iterator[tuple[ast.AST, bool]]:
    yield node, lazy
    inner = lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
    if isinstance(node, ast.If) and _is_type_checking(node.test):
        for child in node.orelse:
            yield from _walk(child, inner)
        return
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, inner)


def imports_of(package: str) -> list[Import]:
    """Every import that can run, in every file of a package; those for type checkers left out."""
    found = []
    for file in sorted(PACKAGES[package].rglob("*.py")):
        here = _package_of(file, package)
        tree = ast.parse(file.read_text(encoding="utf-8"), filename=str(file))
        for node, lazy in _walk(tree, lazy=False):
            for module in _names(node, here):
                found.append(Import(file, getattr(node, "lineno", 0), module, lazy))
    assert found, f"no import found under {package}: the walk itself is broken"
    return found


def refused(imports: list[Import]) -> str:
    return "\n".join(str(i) for i in imports)


def _within(file: Path, *places: str) -> bool:
    inside = file.relative_to(ROOT / "edge_runtime").as_posix()
    return any(inside == place or inside.startswith(place + "/") for place in places)


def test_the_runtime_never_imports_a_checkpoint_library():
    wrong = [i for i in imports_of("edge_runtime") if i.is_of(*CHECKPOINT_LIBRARIES)]
    assert not wrong, refused(wrong)


def test_the_runtime_reaches_the_other_packages_only_lazily_and_only_where_it_composes_them():
    wrong = [
        i
        for i in imports_of("edge_runtime")
        if i.is_of(*MAKERS) and not (i.lazy and _within(i.file, "cli", "store/resolve.py"))
    ]
    assert not wrong, refused(wrong)


def test_onnxruntime_is_imported_in_one_place():
    wrong = [
        i
        for i in imports_of("edge_runtime")
        if i.is_of("onnxruntime") and not _within(i.file, "providers/ort.py")
    ]
    assert not wrong, refused(wrong)


def test_the_exporter_sees_of_the_runtime_only_the_contract():
    contract = [
        "bundle",
        "errors",
        "typed_data",
        "file_hash",
        "part_files",
        "_version",
        "__version__",
    ]
    # These run what was made, by the very rooms that will run it on the device.
    root = PACKAGES["edge_export"]
    running = (root / "validate.py", root / "quantize" / "kv_scales.py")
    to_run = [
        *contract,
        "embedding.embedder",
        "engine.kv_cache",
        "engine.model_runner",
        "engine.portable_runner",
        "providers",
    ]
    wrong = []
    for i in imports_of("edge_export"):
        seen = to_run if i.file in running else contract
        inside = i.is_of(*(f"edge_runtime.{name}" for name in seen))
        if i.is_of("edge_tools") or (i.is_of("edge_runtime") and not inside):
            wrong.append(i)
    assert not wrong, refused(wrong)


def test_targets_are_data_and_know_only_how_data_is_read():
    files = sorted(PACKAGES["edge_targets"].rglob("*.py"))
    assert files
    others = set(PACKAGES) - {"edge_targets"}
    known = ("edge_runtime.typed_data", "edge_runtime.errors", "edge_runtime.near_names")
    wrong = [
        name
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        for name in _names(node, _package_of(file, "edge_targets"))
        if name.split(".")[0] in others and not name.startswith(known)
    ]
    assert not wrong


def test_the_rooms_below_know_nothing_of_the_rooms_above():
    above = {
        "engine": ("cli", "store", "server"),
        "generation": ("cli", "store", "server", "providers", "text"),
        "text": ("cli", "store", "server", "providers", "generation", "engine"),
        "providers": ("cli", "store", "server", "generation", "text", "engine"),
        "store": ("cli", "server", "engine", "generation", "providers"),
    }
    wrong = [
        i
        for i in imports_of("edge_runtime")
        for room, barred in above.items()
        if _within(i.file, room) and i.is_of(*(f"edge_runtime.{name}" for name in barred))
    ]
    assert not wrong, refused(wrong)


def test_the_scheduler_knows_no_array_and_the_runner_no_queue():
    imports = imports_of("edge_runtime")
    arrays = [
        i
        for i in imports
        if _within(i.file, "engine/scheduler.py", "engine/request.py") and i.is_of("numpy")
    ]
    queues = [i for i in imports if _within(i.file, "engine/model_runner.py") and i.is_of("queue")]
    assert not arrays + queues, refused(arrays + queues)


def test_only_the_store_and_the_server_can_reach_a_network():
    wrong = [
        i
        for package in PACKAGES
        if package != "edge_targets"
        for i in imports_of(package)
        if i.is_of(*NETWORK)
        and not (package == "edge_runtime" and _within(i.file, "store", "server"))
    ]
    assert not wrong, refused(wrong)


HEAVY = (
    "numpy", "onnxruntime", "tokenizers", "jinja2", "rich", "fastapi", "uvicorn", "huggingface_hub",
    "onnx", "gguf", "torch", "transformers", "edge_export", "edge_targets", "edge_tools",
)  # fmt: skip


def _loaded_by(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds because of ``statement``."""
    script = f"""
import sys
before = set(sys.modules)
{statement}
print(",".join(sorted({{m.split(".")[0] for m in set(sys.modules) - before}})))
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(result.stdout.strip().split(","))


def test_importing_the_base_package_loads_nothing_heavy():
    started = time.perf_counter()
    loaded = _loaded_by("import edge_runtime")
    print(f"interpreter and import edge_runtime: {time.perf_counter() - started:.3f} s")
    assert "edge_runtime" in loaded
    assert loaded.isdisjoint(HEAVY), loaded & set(HEAVY)


@pytest.mark.parametrize(
    "source, module, lazy",
    [
        ("import gguf", "gguf", False),
        ("from edge_export import pipeline", "edge_export.pipeline", False),
        ("def f():\n    import onnx.helper", "onnx.helper", True),
        ("class A:\n    import torch", "torch", False),
        ("try:\n    import onnx\nexcept ImportError: pass", "onnx", False),
        ("import importlib\nimportlib.import_module('torch')", "torch", False),
    ],
)
def test_the_walk_sees_every_way_to_import(source: str, module: str, lazy: bool):
    seen = [
        (name, is_lazy)
        for node, is_lazy in _walk(ast.parse(source), lazy=False)
        for name in _names(node, ["edge_runtime", "cli"])
    ]
    assert (module, lazy) in seen


def test_the_walk_resolves_relative_imports_and_leaves_out_type_checking():
    tree = ast.parse("if TYPE_CHECKING:\n    import torch\nfrom ..store import pull\n")
    seen = [n for node, _ in _walk(tree, lazy=False) for n in _names(node, ["edge_runtime", "cli"])]
    assert seen == ["edge_runtime.store.pull"]
