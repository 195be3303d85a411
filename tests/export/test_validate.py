"""What the check of a finished export finds, with the runner that it uses replaced by doubles."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edge_export import validate
from edge_export.validate import validate_bundle

from edge_runtime.bundle import (
    GraphEntry,
    Manifest,
    ModelDimensions,
    Quantization,
    SourceEntry,
    TokenizerEntry,
)
from edge_runtime.engine.model_runner import StepInput
from edge_runtime.errors import ExportError, ProviderError, RunError

VOCABULARY = 11


def manifest(context: int = 64) -> Manifest:
    return Manifest(
        schema_version=1,
        name="scripted",
        architecture="none",
        producer="test",
        dimensions=ModelDimensions(1, 1, 1, 8, 8, VOCABULARY, context),
        tokenizer=TokenizerEntry(end_token_ids=(1,)),
        graphs=(GraphEntry("decoder.onnx", (), "fused", "int8", (), "1.23"),),
        quantization=Quantization("int8"),
        files={},
        source=SourceEntry("none", "none", "0" * 64),
    )


class Runner:
    """Logits are the tokens seen so far, so that a lost one shows."""

    open_now = 0

    def __init__(self, graph: Path, cache: Any, **_: object) -> None:
        self.capacity = cache.geometry.capacity
        self.steps: list[StepInput] = []
        self.seen: list[int] = []
        type(self).open_now += 1

    def run(self, step: StepInput) -> np.ndarray:
        self.steps.append(step)
        held = int(step.held[0])
        self.seen = self.remembered(held) + step.token_ids[0].tolist()
        assert len(self.seen) <= self.capacity
        return np.full((1, 1, VOCABULARY), self.logit(), np.float32)

    def remembered(self, held: int) -> list[int]:
        return self.seen[:held]

    def logit(self) -> float:
        return float(sum(i * token for i, token in enumerate(self.seen, 1)))

    def close(self) -> None:
        type(self).open_now -= 1


class Forgetful(Runner):
    def remembered(self, held: int) -> list[int]:
        return [0] * held


class Broken(Runner):
    def logit(self) -> float:
        return float("nan")


class Failing(Runner):
    def logit(self) -> float:
        raise RunError("no such kernel")


@pytest.fixture(autouse=True)
def with_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validate, "require_version", lambda *_: None)


@pytest.mark.parametrize("context", [1, 2, 3, 8, 15, 16, 64])
def test_a_graph_that_remembers_passes_whatever_its_context(
    monkeypatch: pytest.MonkeyPatch, context: int
) -> None:
    monkeypatch.setattr(validate, "OrtModelRunner", Runner)
    assert validate_bundle(Path(), manifest(context))
    assert Runner.open_now == 0


@pytest.mark.parametrize(
    ("runner", "words"),
    [(Forgetful, "cache is wrong"), (Broken, "not finite"), (Failing, "no such kernel")],
)
def test_a_graph_that_is_wrong_is_refused_and_closed(
    monkeypatch: pytest.MonkeyPatch, runner: type[Runner], words: str
) -> None:
    monkeypatch.setattr(validate, "OrtModelRunner", runner)
    with pytest.raises(ExportError, match=words):
        validate_bundle(Path(), manifest())
    assert runner.open_now == 0


def test_a_graph_that_does_not_open_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "decoder.onnx").write_bytes(b"no graph")
    with pytest.raises(ExportError, match="does not open"):
        validate_bundle(tmp_path, manifest())


def test_without_onnxruntime_nothing_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(oldest: str, what: str) -> None:
        raise ProviderError("no onnxruntime is installed")

    monkeypatch.setattr(validate, "require_version", missing)
    assert not validate_bundle(Path("nowhere"), manifest())


def test_each_graph_is_run_over_its_own_type_of_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, str]] = []

    class Noting(Runner):
        def __init__(self, graph: Path, cache: Any, **options: object) -> None:
            super().__init__(graph, cache, **options)
            opened.append((graph.name, cache.geometry.cache_type))

    monkeypatch.setattr(validate, "OrtModelRunner", Noting)
    made = manifest()
    int8 = dataclasses.replace(made.graphs[0], file="other.onnx", cache_type="int8")
    assert validate_bundle(Path(), dataclasses.replace(made, graphs=(*made.graphs, int8)))
    assert opened == [("decoder.onnx", "float32"), ("other.onnx", "int8")]


def test_a_graph_for_a_later_onnxruntime_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_decoder(oldest: str, what: str) -> None:
        if what != "decoder.onnx":
            raise ProviderError("too old")

    monkeypatch.setattr(validate, "require_version", only_decoder)
    monkeypatch.setattr(validate, "OrtModelRunner", Runner)
    made = manifest()
    later = dataclasses.replace(made.graphs[0], file="other.onnx", cache_type="of a later version")
    assert validate_bundle(Path(), dataclasses.replace(made, graphs=(*made.graphs, later)))
