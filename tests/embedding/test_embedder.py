"""Embedding models from Hugging Face directories, against plain numpy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edge_export.pipeline import ExportOptions, export_model
from support.tiny_encoder import POSITIONS, TinyEncoder, token_ids, write_tiny_encoder

from edge_runtime.cli.main import main
from edge_runtime.embedding.embedder import Embedder
from edge_runtime.engine.engine import Engine
from edge_runtime.errors import (
    EmptyPromptError,
    ManifestError,
    PromptTooLongError,
    RunError,
    SourceFormatError,
    UnsupportedModelError,
)

TEXTS = ["a b c", "z", "q w e r t y u i o p", "c b a", "a a a a a a a a a a a a a a"]


def _export(model: TinyEncoder, recipe: Any = "f32") -> Path:
    destination = model.path.parent / f"bundle-{recipe}"
    return export_model(model.path, destination, ExportOptions(quant=recipe)).bundle_path


def _expected(model: TinyEncoder) -> Any:
    return np.stack([model.vector(token_ids(text)) for text in TEXTS])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyEncoder:
    return write_tiny_encoder(tmp_path_factory.mktemp("encoder") / "model", max_tokens=20)


@pytest.fixture(scope="module")
def bundle(model: TinyEncoder) -> Path:
    return _export(model)


@pytest.mark.parametrize(
    "variant",
    [
        {"model_type": "bert", "pooling": "cls"},
        {"model_type": "bert", "normalize": False, "prefix": "bert."},
        {"model_type": "roberta", "prefix": "roberta."},
        {"model_type": "xlm-roberta"},
    ],
    ids=lambda v: "-".join(map(str, v.values())),
)
def test_vectors_are_those_of_the_model(tmp_path: Path, variant: dict[str, Any]):
    model = write_tiny_encoder(tmp_path / "model", **variant)
    with Embedder.load(_export(model)) as embedder:
        vectors = embedder.embed(TEXTS).vectors
    np.testing.assert_allclose(vectors, _expected(model), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("recipe, least", [("auto", 0.995), ("int8", 0.995), ("int4", 0.9)])
def test_quantized_vectors_point_the_same_way(model: TinyEncoder, recipe: str, least: float):
    with Embedder.load(_export(model, recipe)) as embedder:
        vectors = embedder.embed(TEXTS).vectors
    assert (vectors * _expected(model)).sum(axis=1).min() > least


def test_company_changes_no_vector_and_padding_is_counted(bundle: Path, model: TinyEncoder):
    texts = ["a b c d e f g h i j", "a b c d e f g h i"] * 3
    with Embedder.load(bundle) as embedder:
        together = embedder.embed(texts)
        alone = np.concatenate([embedder.embed([text]).vectors for text in texts])
    np.testing.assert_allclose(together.vectors, alone, rtol=1e-4, atol=1e-5)
    assert together.tokens == 3 * (12 + 11)
    assert together.padding_tokens == 3


def test_a_text_that_is_too_long_is_refused_with_both_counts(bundle: Path):
    with Embedder.load(bundle) as embedder, pytest.raises(PromptTooLongError) as error:
        embedder.embed(["a b", " ".join("a" * 30)])
    assert (error.value.prompt_tokens, error.value.context_length) == (32, 20)


def test_a_text_is_cut_only_where_that_is_asked_for(bundle: Path, model: TinyEncoder):
    with Embedder.load(bundle) as embedder:
        vectors = embedder.embed([" ".join("a" * 30)], truncate=True).vectors
    expected = model.vector([2, *[4] * 18, 3])
    np.testing.assert_allclose(vectors[0], expected, rtol=1e-4, atol=1e-5)


def test_a_model_reaches_as_far_as_its_positions(tmp_path: Path):
    model = write_tiny_encoder(tmp_path / "model", model_type="roberta")
    with Embedder.load(_export(model)) as embedder:
        assert embedder.max_tokens == POSITIONS - 2
        embedder.embed([" ".join("a" * (POSITIONS - 4))])


def test_an_empty_text_is_refused_and_no_texts_give_no_vectors(bundle: Path):
    with Embedder.load(bundle) as embedder:
        with pytest.raises(EmptyPromptError, match="text 2"):
            embedder.embed(["a", "  "])
        assert embedder.embed([]).vectors.shape == (0, embedder.width)


def test_a_closed_embedder_says_so(bundle: Path):
    embedder = Embedder.load(bundle)
    embedder.close()
    embedder.close()
    with pytest.raises(RunError, match="closed"):
        embedder.embed(["a"])


def test_an_embedding_model_does_not_write(bundle: Path):
    with pytest.raises(ManifestError, match="embeds texts"):
        Engine.load(bundle)


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"hidden_act": "relu"}, UnsupportedModelError, "relu"),
        ({"position_embedding_type": "relative_key"}, UnsupportedModelError, "relative_key"),
        ({"num_attention_heads": 7}, SourceFormatError, "7 heads"),
        ({"hidden_size": 32}, SourceFormatError, "shape"),
        ({"num_hidden_layers": 3}, SourceFormatError, "encoder.layer.2"),
        ({"max_position_embeddings": -5}, SourceFormatError, "max_position_embeddings"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(
    tmp_path: Path, change: dict[str, Any], error: type[Exception], message: str
):
    model = write_tiny_encoder(tmp_path / "model", config=change)
    with pytest.raises(error, match=message):
        _export(model)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model"]


def test_a_pooling_that_is_not_built_is_named(tmp_path: Path):
    model = write_tiny_encoder(tmp_path / "model", pooling="max")
    with pytest.raises(UnsupportedModelError, match="pooling_mode_max_tokens"):
        _export(model)


def test_a_model_that_does_not_say_how_to_pool_is_refused(tmp_path: Path):
    model = write_tiny_encoder(tmp_path / "model")
    (model.path / "modules.json").unlink()
    with pytest.raises(UnsupportedModelError, match="no modules"):
        _export(model)


def test_a_pooling_outside_the_directory_is_not_read(tmp_path: Path):
    model = write_tiny_encoder(tmp_path / "model")
    modules = json.loads((model.path / "modules.json").read_text())
    modules[1]["path"] = "../elsewhere"
    (model.path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(SourceFormatError, match="leaves the directory"):
        _export(model)


def test_the_command_prints_a_vector_a_text(
    bundle: Path, model: TinyEncoder, tmp_path: Path, monkeypatch, capsys
):
    monkeypatch.setenv("EDGE_RUNTIME_HOME", str(tmp_path))
    assert main(["embed", str(bundle), "a b c", "z"]) == 0
    lines = capsys.readouterr().out.splitlines()
    vectors = np.array([json.loads(line) for line in lines], np.float32)
    np.testing.assert_allclose(vectors, _expected(model)[:2], rtol=1e-4, atol=1e-5)


def test_the_command_without_a_text_says_so(bundle: Path, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv("EDGE_RUNTIME_HOME", str(tmp_path))
    assert main(["embed", str(bundle)]) == 2
    assert "there is no text" in capsys.readouterr().err
