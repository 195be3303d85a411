"""The graph for onnxruntime-genai is the decoder's own, and that runtime gives the same tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from edge_export.genai import GENAI_CONFIG_NAME, GENAI_GRAPH_NAME, genai_graph
from edge_export.pipeline import export_model
from support.tiny_gguf import write_tiny_gguf

from edge_runtime.bundle import read_manifest
from edge_runtime.engine.engine import Engine, EngineOptions

PROMPT = (5, 9, 7, 6, 11, 8)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("genai")
    source = folder / "tiny.gguf"
    write_tiny_gguf(source)
    return export_model(source, folder / "bundle").bundle_path


def _last_logits(bundle: Path, prompt: Sequence[int]) -> np.ndarray[Any, Any]:
    with Engine.load(bundle) as engine:
        return np.concatenate(list(engine.score(prompt)))[-1]


def _run_genai_graph(
    bundle: Path, rows: Sequence[Sequence[int]], held: int = 0
) -> np.ndarray[Any, Any]:
    session = ort.InferenceSession(
        str(bundle / GENAI_GRAPH_NAME), providers=["CPUExecutionProvider"]
    )
    ids = np.array(rows, np.int64)
    size = read_manifest(bundle).dimensions
    cache = np.zeros((len(ids), size.kv_heads, 16, size.head_size), np.float32)
    feeds: dict[str, Any] = {
        "input_ids": ids,
        "attention_mask": np.ones((len(ids), held + ids.shape[1]), np.int64),
    }
    for layer in range(size.layers):
        for part in ("key", "value"):
            feeds[f"past_key_values.{layer}.{part}"] = cache
    return session.run(["logits"], feeds)[0]


def test_the_second_graph_gives_the_last_positions_logits(bundle: Path):
    logits = _run_genai_graph(bundle, [PROMPT])
    assert logits.shape[:2] == (1, 1)
    np.testing.assert_allclose(logits[0, 0], _last_logits(bundle, PROMPT), rtol=1e-4, atol=1e-5)


def test_every_row_of_a_batch_has_its_logits(bundle: Path):
    other = PROMPT[::-1]
    both = _run_genai_graph(bundle, [PROMPT, other])
    assert both.shape[:2] == (2, 1)
    np.testing.assert_allclose(both[1, 0], _last_logits(bundle, other), rtol=1e-4, atol=1e-5)


def test_the_second_graph_names_the_same_weights_and_brings_none(bundle: Path):
    model = onnx.load(str(bundle / GENAI_GRAPH_NAME), load_external_data=False)
    locations = {
        entry.value
        for tensor in model.graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }
    assert locations == {"decoder.weights"}
    assert [value.name for value in model.graph.input[:2]] == ["input_ids", "attention_mask"]


def test_the_decoder_itself_is_left_as_it_was(bundle: Path):
    decoder = onnx.load(str(bundle / "decoder.onnx"), load_external_data=False)
    before = decoder.SerializeToString(deterministic=True)
    genai_graph(decoder)
    assert decoder.SerializeToString(deterministic=True) == before


def test_the_configuration_says_what_the_manifest_says(bundle: Path):
    manifest = read_manifest(bundle)
    model = json.loads((bundle / GENAI_CONFIG_NAME).read_text())["model"]
    assert model["eos_token_id"] == list(manifest.tokenizer.end_token_ids)
    assert model["vocab_size"] == manifest.dimensions.vocabulary_size
    assert model["decoder"]["num_hidden_layers"] == manifest.dimensions.layers
    assert model["decoder"]["filename"] in manifest.files


@pytest.mark.model
def test_onnxruntime_genai_gives_the_same_greedy_tokens(real_bundle: Path):
    genai = pytest.importorskip("onnxruntime_genai")
    if not (real_bundle / GENAI_CONFIG_NAME).is_file():
        pytest.skip("the bundle was exported without a graph for onnxruntime-genai")
    with Engine.load(real_bundle, EngineOptions(context_length=256)) as engine:
        prompt = engine.encode_chat([{"role": "user", "content": "Name the capital of France."}])
        params = engine.default_params(temperature=0.0, max_tokens=24)
        ours = [delta.token_id for delta in engine.generate_tokens(prompt, params)]
    settings = genai.GeneratorParams(model := genai.Model(str(real_bundle)))
    settings.set_search_options(max_length=len(prompt) + 24, do_sample=False)
    generator = genai.Generator(model, settings)
    generator.append_tokens(prompt)
    theirs: list[int] = []
    while len(theirs) < len(ours):
        generator.generate_next_token()
        theirs.append(int(generator.get_next_tokens()[0]))
    assert theirs == ours
