"""Embeddings over HTTP, by a real tiny model."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs the serve extra")
pytest.importorskip("edge_export.pipeline", reason="needs the export extra")
from edge_export.pipeline import ExportOptions, export_model
from support.scripted_server import Running, running_server, wait_until_ready
from support.tiny_encoder import TinyEncoder, token_ids, write_tiny_encoder

from edge_runtime.embedding.embedder import Embedder
from edge_runtime.server.embedders import Embedders
from edge_runtime.server.models import ServedModel

TEXTS = ["a b c", "z"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyEncoder:
    return write_tiny_encoder(tmp_path_factory.mktemp("served") / "model", max_tokens=20)


@pytest.fixture(scope="module")
def bundle(model: TinyEncoder) -> Path:
    destination = model.path.parent / "bundle"
    return export_model(model.path, destination, ExportOptions(quant="f32")).bundle_path


@pytest.fixture(scope="module")
def server(bundle: Path) -> Iterator[Running]:
    embedders = Embedders(
        [ServedModel("tiny", "tiny")],
        open_embedder=lambda served: Embedder.load(bundle),
        max_waiting=4,
    )
    with running_server(embedders=embedders) as running:
        wait_until_ready(running)
        yield running


def _expected(model: TinyEncoder) -> Any:
    return np.stack([model.vector(token_ids(text)) for text in TEXTS])


def test_openais_form(server: Running, model: TinyEncoder) -> None:
    answer = server.post("/v1/embeddings", {"model": "tiny", "input": TEXTS}).json()
    vectors = [entry["embedding"] for entry in answer["data"]]
    np.testing.assert_allclose(vectors, _expected(model), rtol=1e-4, atol=1e-5)
    assert [entry["index"] for entry in answer["data"]] == [0, 1]
    assert answer["usage"] == {"prompt_tokens": 8, "total_tokens": 8}


def test_openais_client_asks_for_base64(server: Running, model: TinyEncoder) -> None:
    asked = {"model": "tiny", "input": TEXTS[0], "encoding_format": "base64"}
    text = server.post("/v1/embeddings", asked).json()["data"][0]["embedding"]
    vector = np.frombuffer(base64.b64decode(text), "<f4")
    np.testing.assert_allclose(vector, _expected(model)[0], rtol=1e-4, atol=1e-5)


def test_the_openai_client_itself(server: Running, model: TinyEncoder) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        made = client.embeddings.create(model="tiny", input=TEXTS)
    vectors = [entry.embedding for entry in made.data]
    np.testing.assert_allclose(vectors, _expected(model), rtol=1e-4, atol=1e-5)


def test_ollamas_form(server: Running, model: TinyEncoder) -> None:
    answer = server.post("/api/embed", {"model": "tiny:latest", "input": TEXTS}).json()
    np.testing.assert_allclose(answer["embeddings"], _expected(model), rtol=1e-4, atol=1e-5)
    assert answer["prompt_eval_count"] == 8
    old = server.post("/api/embeddings", {"model": "tiny", "prompt": TEXTS[0]}).json()
    np.testing.assert_allclose(old["embedding"], _expected(model)[0], rtol=1e-4, atol=1e-5)


def test_a_text_that_is_too_long_is_cut_for_ollama_and_refused_for_openai(server: Running) -> None:
    asked = {"model": "tiny", "input": " ".join("a" * 50)}
    refused = server.post("/v1/embeddings", asked)
    assert refused.status_code == 400
    assert "52 tokens" in refused.json()["error"]["message"]
    assert server.post("/api/embed", asked).status_code == 200
    assert server.post("/api/embed", {**asked, "truncate": False}).status_code == 400


@pytest.mark.parametrize(
    "change, param",
    [
        ({"input": [1, 2, 3]}, "input[0]"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": None}, "input"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"dimensions": 3}, "dimensions"),
        ({"input": ["a"] * 2049}, "input"),
    ],
)
def test_what_cannot_be_honoured_is_named(
    server: Running, change: dict[str, Any], param: str
) -> None:
    response = server.post("/v1/embeddings", {"model": "tiny", "input": "a", **change})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_models_that_embed_are_listed_and_the_others_refuse(server: Running) -> None:
    listed = [one["id"] for one in server.client.get("/v1/models").json()["data"]]
    assert listed == ["shouter", "tiny"]
    assert server.client.get("/v1/models/tiny").json()["id"] == "tiny"
    refused = server.post("/v1/embeddings", {"model": "shouter", "input": "a"})
    assert refused.status_code == 501 and "tiny does" in refused.json()["error"]["message"]
    assert server.post("/v1/embeddings", {"model": "no", "input": "a"}).status_code == 404


def test_a_full_queue_says_when_to_come_again() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def open_slowly(served: ServedModel) -> Embedder:
        begun.set()
        go_on.wait(20)
        raise ZeroDivisionError

    embedders = Embedders([ServedModel("tiny", "tiny")], open_embedder=open_slowly, max_waiting=1)
    with running_server(embedders=embedders) as running:
        wait_until_ready(running)
        asked = {"model": "tiny", "input": "a"}
        first = threading.Thread(target=running.post, args=("/v1/embeddings", asked))
        first.start()
        try:
            assert begun.wait(20)
            refused = running.post("/api/embed", asked)
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "1"
        finally:
            go_on.set()
            first.join(20)
