"""Loading a bundle: what is opened, what is refused, and what is closed again when a part fails."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.int8_attention import needs_int8_attention

from edge_runtime.bundle import CACHE_TYPES
from edge_runtime.engine import load
from edge_runtime.engine.engine import Engine, EngineOptions
from edge_runtime.engine.kv_cache import CacheGeometry, KVCache
from edge_runtime.engine.memory_plan import MemoryCosts
from edge_runtime.engine.model_runner import OrtModelRunner, StepInput
from edge_runtime.errors import (
    ChatTemplateError,
    InvalidParameterError,
    ManifestError,
    ProviderError,
    RunError,
    TokenizerError,
)
from edge_runtime.generation.params import SamplingParams
from edge_runtime.providers.session import SessionOptions
from edge_runtime.providers.threads import plan_threads

STEP = StepInput(
    first_slot=0,
    token_ids=np.zeros((1, 1), np.int64),
    held=np.zeros(1, np.int32),
    lengths=np.ones(1, np.int32),
    logits_indices=np.zeros((1, 1), np.int64),
)
GREEDY = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for name in ("onnxruntime", "gguf", "onnx"):
        pytest.importorskip(name)
    from edge_export.pipeline import export_model
    from support.tiny_gguf import write_tiny_gguf

    folder = tmp_path_factory.mktemp("load")
    write_tiny_gguf(folder / "tiny.gguf", kind="Q8_0")
    return export_model(folder / "tiny.gguf", folder / "bundle").bundle_path


@pytest.fixture
def bundle(made: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    copy = tmp_path / "bundle"
    copy.mkdir()
    for file in made.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def change_manifest(bundle: Path, change: Change) -> None:
    file = bundle / "manifest.json"
    plain = json.loads(file.read_text(encoding="utf-8"))
    change(plain)
    file.write_text(json.dumps(plain), encoding="utf-8")


def replace_file(bundle: Path, name: str, content: str | bytes) -> None:
    data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
    (bundle / name).write_bytes(data)
    entry = {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    change_manifest(bundle, lambda plain: plain["files"].update({name: entry}))


def test_a_bundle_loads_runs_and_closes(made: Path) -> None:
    with Engine.load(str(made), EngineOptions(threads=1)) as engine:
        first = engine.generate([{"role": "user", "content": "hello"}], GREEDY)
        assert first.usage.completion_tokens == 5
        assert engine.memory().cache_tokens > 5
    engine.close()
    with pytest.raises(RunError, match="closed"):
        engine.generate("hello", GREEDY)


def test_the_context_is_the_models_own_unless_asked_for(made: Path) -> None:
    with Engine.load(made) as engine:
        assert engine.context_length == 256
    with Engine.load(made, EngineOptions(context_length=20)) as engine:
        assert engine.generate("hello", SamplingParams(ignore_eos=True)).usage is not None
        assert engine.context_length == 20
    with pytest.raises(InvalidParameterError, match="257 tokens is longer than the model's 256"):
        Engine.load(made, EngineOptions(context_length=257))


def test_a_graph_that_needs_a_newer_onnxruntime_is_refused_before_it_is_opened(
    bundle: Path,
) -> None:
    change_manifest(bundle, lambda plain: plain["graphs"][0].update(oldest_onnxruntime="99.1"))
    with pytest.raises(ProviderError, match=r"needs onnxruntime 99\.1 or later"):
        Engine.load(bundle)


def test_a_bundle_without_a_graph_over_an_int8_cache_opens_as_before_and_says_so(
    bundle: Path,
) -> None:
    def forget(plain: dict[str, Any]) -> None:
        plain["graphs"] = [g for g in plain["graphs"] if g.get("cache_type") != "int8"]
        for graph in plain["graphs"]:
            graph.pop("cache_type", None)  # as bundles were before there was a choice

    change_manifest(bundle, forget)
    with Engine.load(bundle) as engine:
        assert engine.provider.graph.cache_type == "float32"
    with pytest.raises(InvalidParameterError, match="no graph over an int8 cache") as caught:
        Engine.load(bundle, EngineOptions(cache_type="int8"))
    assert "export it again" in str(caught.value.hint)


def test_an_int8_cache_needs_an_onnxruntime_that_attends_to_one(bundle: Path) -> None:
    def need_more(plain: dict[str, Any]) -> None:
        for graph in plain["graphs"]:
            if graph["cache_type"] == "int8":
                graph["oldest_onnxruntime"] = "99.1"

    change_manifest(bundle, need_more)
    Engine.load(bundle).close()
    with pytest.raises(ProviderError, match=r"int8 cache needs onnxruntime 99\.1 or later"):
        Engine.load(bundle, EngineOptions(cache_type="int8"))


def test_a_type_of_cache_that_nobody_knows_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="'int3'") as caught:
        EngineOptions(cache_type="int3")  # type: ignore[arg-type]
    assert caught.value.hint == "use float32 or int8"


@needs_int8_attention
def test_an_int8_cache_holds_a_quarter_and_gives_nearly_the_same_logits(made: Path) -> None:
    ids = [int(t) for t in np.random.default_rng(4).integers(0, 250, 100)]
    logits, token_bytes = {}, {}
    for cache_type in CACHE_TYPES:
        with Engine.load(made, EngineOptions(cache_type=cache_type)) as engine:
            assert engine.provider.graph.cache_type == cache_type
            logits[cache_type] = np.concatenate(list(engine.score(ids)))
            list(engine.generate_tokens(ids, GREEDY))
            memory = engine.memory()
            token_bytes[cache_type] = memory.cache_bytes / memory.cache_tokens
    assert token_bytes["float32"] == 4 * token_bytes["int8"]
    error = logits["int8"] - logits["float32"]
    # A random model's heads are as sensitive as can be; a cache read wrongly gives more than 1.
    assert 0 < float(error.std()) < 0.2 * float(logits["float32"].std())


@needs_int8_attention
def test_under_a_cap_the_int8_cache_is_taken_and_is_one_session_alone(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The costs are scripted: a tiny model's own are lost in the interpreter's."""
    mb = 10**6

    class Meter:
        def measure(self, runner: Any, cache: KVCache, **_: object) -> MemoryCosts:
            held.append((runner, cache.geometry.cache_type))
            token = {"float32": 400_000, "int8": 100_000}[cache.geometry.cache_type]
            return MemoryCosts(50 * mb, 10 * mb, 10 * mb, 0, 16, token)

    held: list[tuple[OrtModelRunner, str]] = []
    monkeypatch.setattr(load, "CostMeter", Meter)
    options = EngineOptions(context_length=256, memory_cap_bytes=110 * mb)
    with Engine.load(made, options) as engine:
        plan = engine.memory_plan
        assert plan is not None
        assert plan.steps == ("cache int8 (asked for float32)",)
        assert engine.provider.graph.cache_type == "int8"
        assert engine.generate("hello", GREEDY).usage is not None
        first, second = held
        assert (first[1], second[1]) == ("float32", "int8")
        with pytest.raises(RunError, match="closed"):
            first[0].run(STEP)
    with pytest.raises(RunError, match="closed"):
        second[0].run(STEP)


@pytest.mark.parametrize(
    "wrong", [{"providers": ["QNNExecutionProvider"]}, {"dialect": "unheard-of"}]
)
def test_a_bundle_without_a_graph_for_this_runtime_says_what_it_has(
    bundle: Path, wrong: dict[str, Any]
) -> None:
    change_manifest(bundle, lambda plain: plain["graphs"][0].update(wrong))
    with pytest.raises(ProviderError, match="has no graph for CPU") as caught:
        Engine.load(bundle)
    assert "edge-runtime export" in str(caught.value.hint)


def test_the_graph_for_this_runtime_is_found_among_others(bundle: Path) -> None:
    def add_another(plain: dict[str, Any]) -> None:
        other = {**plain["graphs"][0], "file": "tokenizer.json", "providers": ["OtherProvider"]}
        plain["graphs"].insert(0, other)

    change_manifest(bundle, add_another)
    Engine.load(bundle).close()


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", "*/_ORT_MEM_ADDR_/*"])
def test_a_graph_that_reads_outside_the_bundle_is_refused_before_it_is_opened(
    bundle: Path, location: str
) -> None:
    """Older onnxruntimes would read it."""
    import onnx

    model = onnx.load(str(bundle / "decoder.onnx"), load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    (bundle.parent / "secret").write_bytes(b"x" * 1_000_000)
    replace_file(bundle, "decoder.onnx", model.SerializeToString())
    with pytest.raises(ManifestError, match="does not list among its weights") as caught:
        Engine.load(bundle)
    assert location in str(caught.value)


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was closed, in order."""
    names: list[str] = []
    for kind in (OrtModelRunner, KVCache):
        real = kind.close

        def close(self: Any, real: Any = real, name: str = kind.__name__) -> None:
            names.append(name)
            real(self)

        monkeypatch.setattr(kind, "close", close)
    return names


def test_a_broken_tokenizer_leaves_no_session_and_no_cache_open(
    bundle: Path, closed: list[str]
) -> None:
    replace_file(bundle, "tokenizer.json", "{}")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        Engine.load(bundle)
    assert closed == ["OrtModelRunner", "KVCache"]


def test_a_broken_graph_leaves_no_cache_open(bundle: Path, closed: list[str]) -> None:
    replace_file(bundle, "decoder.onnx", b"\x08\x63")  # a model of version 99, and no more
    with pytest.raises(ProviderError, match=r"decoder\.onnx"):
        Engine.load(bundle)
    assert closed == ["KVCache"]


def test_a_missing_tokenizer_is_named(bundle: Path) -> None:
    change_manifest(bundle, lambda plain: plain["files"].pop("tokenizer.json"))
    with pytest.raises(ManifestError, match=r"tokenizer\.json"):
        Engine.load(bundle)


def rendered(bundle: Path) -> str:
    with Engine.load(bundle) as engine:
        assert engine.chat_template is not None
        return engine.chat_template.render([{"role": "user", "content": "x"}])


def test_a_template_sees_the_special_tokens_that_the_tokenizer_config_names(bundle: Path) -> None:
    """Several tokens may end an answer; only the configuration knows which is eos_token."""
    replace_file(bundle, "chat_template.jinja", "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}")
    config = {"eos_token": {"content": "<|im_end|>"}, "pad_token": "<pad>", "bos_token": "<s>"}
    replace_file(bundle, "tokenizer_config.json", json.dumps(config))
    assert rendered(bundle) == "<s>|<|im_end|>|<pad>"


@pytest.mark.parametrize("config", ["[]", "{", '{"eos_token": 5}'])
def test_without_a_usable_configuration_the_first_end_token_stands_in(
    bundle: Path, config: str
) -> None:
    replace_file(bundle, "chat_template.jinja", "{{ eos_token }}")
    replace_file(bundle, "tokenizer_config.json", config)
    assert rendered(bundle).startswith("<|")


def test_a_broken_template_breaks_conversations_only(bundle: Path) -> None:
    replace_file(bundle, "chat_template.jinja", "{% if %}")
    with Engine.load(bundle) as engine:
        assert engine.generate("hello", GREEDY).token_ids
        with pytest.raises(ChatTemplateError, match="broken"):
            engine.generate([{"role": "user", "content": "x"}], GREEDY)


@pytest.mark.parametrize("template", [" \n", "\udcff"])
def test_a_template_that_is_none_is_as_if_there_were_no_file(bundle: Path, template: str) -> None:
    replace_file(bundle, "chat_template.jinja", template)
    with Engine.load(bundle) as engine, pytest.raises(ChatTemplateError, match="no chat template"):
        engine.encode_chat([{"role": "user", "content": "x"}])


@pytest.fixture
def runner(made: Path) -> OrtModelRunner:
    from edge_runtime.bundle import read_manifest

    model = read_manifest(made).dimensions
    cache = KVCache(CacheGeometry.of(model, slots=2, capacity=8))
    return OrtModelRunner(
        made / "decoder.onnx",
        cache,
        vocabulary_size=model.vocabulary_size,
        options=SessionOptions(plan_threads(1)),
    )


def step(*, first_slot: int = 0, rows: int = 1, held: int = 0, count: int = 3) -> StepInput:
    return StepInput(
        first_slot=first_slot,
        token_ids=np.zeros((rows, count), np.int64),
        held=np.full(rows, held, np.int32),
        lengths=np.full(rows, count, np.int32),
        logits_indices=np.zeros((rows, 1), np.int64),
    )


@pytest.mark.parametrize(
    "outside", [step(held=6), step(first_slot=2), step(first_slot=1, rows=2), step(first_slot=-1)]
)
def test_a_step_outside_the_cache_never_reaches_the_graph(
    runner: OrtModelRunner, outside: StepInput
) -> None:
    """It would write to memory that is somebody else's."""
    with pytest.raises(AssertionError):
        runner.run(outside)
    assert runner.run(step(first_slot=1, held=5)).shape[:2] == (1, 1)


def test_a_closed_runner_refuses_and_may_be_closed_again(runner: OrtModelRunner) -> None:
    runner.close()
    runner.close()
    with pytest.raises(RunError, match="closed"):
        runner.run(step())


def test_a_stopped_run_is_told_apart_and_the_next_one_goes_on(runner: OrtModelRunner) -> None:
    from edge_runtime.engine.model_runner import RunTerminatedError

    expected = runner.run(step()).copy()
    runner.terminate()
    with pytest.raises(RunTerminatedError):
        runner.run(step())
    assert (runner.run(step()) == expected).all()


@pytest.mark.parametrize(
    ("key", "value"), [("layers", 3), ("kv_heads", 1), ("vocabulary_size", 9999)]
)
def test_a_graph_of_other_dimensions_than_the_manifests_is_refused(
    bundle: Path, key: str, value: int
) -> None:
    change_manifest(bundle, lambda plain: plain["dimensions"].update({key: value}))
    with pytest.raises(ManifestError, match="is not the graph that the manifest describes"):
        Engine.load(bundle)
