"""The real clients, unchanged, against the real command with the real model."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.model

QUESTION = [{"role": "user", "content": "Name the capital of France in one sentence."}]


@pytest.fixture(scope="module")
def served(real_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of ``edge-runtime serve`` as a user starts it."""
    folder = tmp_path_factory.mktemp("serve")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "edge_runtime", "serve", f"smollm={real_bundle}",
                "--port", "0", "--log-requests",
            ],
            stderr=log, env={**os.environ, "EDGE_RUNTIME_HOME": str(folder / "home")},
        )  # fmt: skip
    try:
        url = _when_listening(folder / "log", process)
        _when_ready(url, process)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
    said = (folder / "log").read_text()
    assert code == 0, said
    assert "France" not in said and str(real_bundle) not in said


def _when_listening(log: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        for word in log.read_text().replace(",", " ").split():
            if word.startswith("http://"):
                return word
        time.sleep(0.1)
    raise AssertionError(log.read_text())


def _when_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while httpx.get(f"{url}/health", timeout=30).status_code != 200:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)


def test_openais_client_asks_and_streams(served: str) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{served}/v1", api_key="none") as client:
        assert [m.id for m in client.models.list()] == ["smollm"]
        whole = client.chat.completions.create(
            model="smollm", messages=QUESTION, temperature=0, max_tokens=7
        )
        said = whole.choices[0].message.content
        assert "Paris" in said and whole.usage.completion_tokens == 7
        stream = client.chat.completions.create(
            model="smollm", messages=QUESTION, temperature=0, max_tokens=7, stream=True,
            stream_options={"include_usage": True}, logprobs=True, top_logprobs=2,
        )  # fmt: skip
        chunks = list(stream)
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == said
        assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0
        legacy = client.completions.create(
            model="smollm", prompt="The capital of France is", temperature=0, max_tokens=4, n=2
        )
        assert [c.index for c in legacy.choices] == [0, 1]
        with pytest.raises(openai.BadRequestError, match="temperature"):
            client.chat.completions.create(model="smollm", messages=QUESTION, temperature=-1)
        with pytest.raises(openai.NotFoundError, match="not found"):
            client.chat.completions.create(model="gpt-4o", messages=QUESTION)


CLOCK: dict[str, Any] = {"type": "function", "function": {
    "name": "get_time", "description": "The time in a city",
    "parameters": {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}},
                   "required": ["city"]},
}}  # fmt: skip


def test_openais_client_parses_structured_answers(served: str) -> None:
    openai, pydantic = pytest.importorskip("openai"), pytest.importorskip("pydantic")
    pytest.importorskip("llguidance")

    class City(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        name: str = pydantic.Field(max_length=12)
        size: int = pydantic.Field(ge=0, le=99)
        sights: list[bool] = pydantic.Field(max_length=1)

    with openai.OpenAI(base_url=f"{served}/v1", api_key="none") as client:
        city = client.chat.completions.parse(
            model="smollm", messages=QUESTION, response_format=City, max_tokens=60, temperature=1
        )
        assert city.choices[0].finish_reason == "stop"
        assert isinstance(city.choices[0].message.parsed, City)
        plain = client.chat.completions.create(
            model="smollm", messages=QUESTION, max_tokens=8, temperature=1, seed=1,
            extra_body={"regex": "(Paris|Rome), [0-9]{2}"},
        )  # fmt: skip
        assert plain.choices[0].message.content.split(",")[0] in ("Paris", "Rome")
        unsupported = {"type": "array", "uniqueItems": True}
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": unsupported}}
        with pytest.raises(openai.BadRequestError, match="uniqueItems"):
            client.chat.completions.create(model="smollm", messages=QUESTION, response_format=form)


def test_openais_client_calls_tools(served: str) -> None:
    openai = pytest.importorskip("openai")
    pytest.importorskip("llguidance")
    with openai.OpenAI(base_url=f"{served}/v1", api_key="none") as client:
        asked = [{"role": "user", "content": "What time is it in Rome?"}]
        fields = {"model": "smollm", "tools": [CLOCK], "temperature": 0, "max_tokens": 40}
        only = {"type": "function", "function": {"name": "get_time"}}
        whole = client.chat.completions.create(
            messages=asked, tool_choice=only, parallel_tool_calls=False, **fields
        )
        (call,) = whole.choices[0].message.tool_calls
        assert whole.choices[0].finish_reason == "tool_calls"
        assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
        with client.chat.completions.stream(
            messages=asked, tool_choice="required", parallel_tool_calls=False, **fields
        ) as stream:
            streamed = stream.get_final_completion().choices[0].message.tool_calls[0]
        assert streamed.function.arguments == call.function.arguments
        result = {"role": "tool", "tool_call_id": call.id, "content": "Half past nine."}
        history = [*asked, whole.choices[0].message.to_dict(), result]
        answer = client.chat.completions.create(messages=history, **(fields | {"max_tokens": 8}))
        assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")


def test_ollamas_client_asks_for_a_form_and_calls_tools(served: str) -> None:
    ollama = pytest.importorskip("ollama")
    pytest.importorskip("llguidance")
    options = {"temperature": 0, "num_predict": 40}
    schema = CLOCK["function"]["parameters"] | {"additionalProperties": False}
    with ollama.Client(host=served) as client:
        answer = client.chat("smollm", QUESTION, format=schema, options=options)
        called = client.chat("smollm", QUESTION, tools=[CLOCK], options=options)
    assert json.loads(answer.message.content)["city"] in ("Paris", "Rome")
    for call in called.message.tool_calls or ():
        assert call.function.name == "get_time"
        assert call.function.arguments["city"] in ("Paris", "Rome")


def test_openais_async_client_streams_several_at_once(served: str) -> None:
    openai = pytest.importorskip("openai")

    async def ask(client: Any) -> str:
        stream = await client.chat.completions.create(
            model="smollm", messages=QUESTION, temperature=0, max_tokens=7, stream=True
        )
        return "".join([c.choices[0].delta.content or "" async for c in stream])

    async def several() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{served}/v1", api_key="none") as client:
            return list(await asyncio.gather(*(ask(client) for _ in range(3))))

    answers = asyncio.run(several())
    assert all("Paris" in answer for answer in answers)


def test_ollamas_client_asks_streams_and_looks_around(served: str) -> None:
    ollama = pytest.importorskip("ollama")
    with ollama.Client(host=served) as client:
        options = {"temperature": 0, "num_predict": 7, "num_ctx": 8192}
        whole = client.chat("smollm", QUESTION, options=options, keep_alive="5m")
        assert "Paris" in whole.message.content and whole.eval_count == 7
        pieces = list(client.chat("smollm:latest", QUESTION, options=options, stream=True))
        assert "".join(p.message.content for p in pieces) == whole.message.content
        assert pieces[-1].done and pieces[-1].total_duration > 0
        text = client.generate("smollm", "The capital of France is", raw=True, options=options)
        assert "Paris" in text.response
        assert [m.model for m in client.list().models] == ["smollm:latest"]
        assert client.show("smollm").modelinfo["llama.context_length"] > 0
        assert client.ps().models[0].model == "smollm:latest"
        with pytest.raises(ollama.ResponseError, match="gives no embeddings"):
            client.embed("smollm", "x")
        with pytest.raises(ollama.ResponseError, match="not found"):
            client.chat("other", QUESTION)


def test_home_assistants_conversation_is_answered(served: str) -> None:
    """The calls of its Ollama integration: probe, list, then a stream that keeps the model."""
    ollama = pytest.importorskip("ollama")

    async def converse() -> str:
        async with ollama.AsyncClient(host=served) as client:
            found = await client.list()
            model = found["models"][0]["model"]
            system = {
                "role": "system",
                "content": "You are a voice assistant. Answer in one sentence.",
            }
            said = ""
            for history in ([system, *QUESTION], [system, *QUESTION]):
                stream = await client.chat(
                    model=model, messages=history, tools=None, stream=True, keep_alive="-1s",
                    options={"num_ctx": 8192, "temperature": 0, "num_predict": 16}, think=False,
                )  # fmt: skip
                said = "".join([part["message"]["content"] or "" async for part in stream])
            return said

    assert asyncio.run(converse())


def test_langchains_client_asks_and_streams(served: str) -> None:
    module = pytest.importorskip("langchain_openai", reason="needs the test-clients extra")
    model = module.ChatOpenAI(
        base_url=f"{served}/v1", api_key="none", model="smollm", temperature=0, max_tokens=7
    )
    whole = model.invoke("Name the capital of France in one sentence.")
    assert "Paris" in whole.content and whole.usage_metadata["output_tokens"] == 7
    assert "".join(c.content for c in model.stream("Name the capital of France in one sentence."))


def test_curl_is_enough(served: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    body = {"messages": QUESTION, "temperature": 0, "max_tokens": 7, "stream": True}
    done = subprocess.run(
        ["curl", "-sN", f"{served}/v1/chat/completions", "-d", json.dumps(body)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.endswith("data: [DONE]\n\n")
