"""From a bundle directory to the parts that an engine runs: session, cache, tokenizer, template.

Knows where each part is in a bundle; knows no request. When any part does not load, those that did
are closed again.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from edge_runtime.bundle import (
    CHAT_TEMPLATE_NAME,
    TOKENIZER_CONFIG_NAME,
    TOKENIZER_NAME,
    Bundle,
    GraphEntry,
    Manifest,
)
from edge_runtime.engine.kv_cache import CacheGeometry, KVCache
from edge_runtime.engine.memory_limit import with_cap_if_near
from edge_runtime.engine.memory_measure import CostMeter
from edge_runtime.engine.memory_plan import MemoryAsk, MemoryPlan, plan_memory
from edge_runtime.engine.model_runner import OrtModelRunner
from edge_runtime.engine.options import EngineOptions, context_length
from edge_runtime.engine.portable_runner import PortableRunner
from edge_runtime.errors import ChatTemplateError, IntegrityError, ManifestError
from edge_runtime.generation.speculation import MAX_DRAFT_TOKENS
from edge_runtime.providers.external_data import external_locations
from edge_runtime.providers.memory_advice import MappedFiles, trim_heap
from edge_runtime.providers.ort import onnxruntime, require_version
from edge_runtime.providers.select import (
    ProviderReport,
    ProviderRequest,
    ProviderWarning,
    first_that_runs,
    graph_for,
    requests_for,
)
from edge_runtime.providers.session import SessionOptions, require_provider
from edge_runtime.providers.threads import plan_threads
from edge_runtime.text.chat_template import ChatTemplate
from edge_runtime.text.tokenizer import BundleTokenizer, Tokenizer

_DIALECTS = ("fused", "portable")
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass(frozen=True)
class EngineParts:
    """What :class:`edge_runtime.engine.engine.Engine` is made of, ready to run."""

    manifest: Manifest
    runner: OrtModelRunner | PortableRunner
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    context_length: int
    cache: KVCache
    mapped_weights: MappedFiles
    options: EngineOptions
    memory_plan: MemoryPlan | None
    provider: ProviderReport


@dataclass(frozen=True)
class OpenedGraph:
    """A runner, and the weights files that its session reads."""

    runner: OrtModelRunner | PortableRunner
    mapped_weights: MappedFiles


def load_parts(
    path: Path, options: EngineOptions, *, hash_file: Callable[[Path], str]
) -> EngineParts:
    """Open a bundle and everything in it that generation needs.

    Raises:
        BundleError: the bundle cannot be trusted or read.
        TokenizerError: its tokenizer does not load.
        ProviderError: no onnxruntime, one too old for the graph, or it does not open the graph.
        InvalidParameterError: a context longer than the model's, or a memory cap on a system that
            cannot keep one.
        MemoryCapError: the model does not fit in the memory cap.
        RunError: the system refuses the cache's address space.
    """
    bundle = Bundle.open(path, hash_file=hash_file)
    manifest = bundle.manifest
    if manifest.embedding is not None:
        raise ManifestError(
            f"{manifest.name} embeds texts and does not write any",
            hint="edge-runtime embed MODEL TEXT",
        )
    context = context_length(manifest, options.context_length)
    options = with_cap_if_near(options, manifest, context)
    threads = plan_threads(options.threads)
    requests = requests_for(
        options.providers, onnxruntime().get_available_providers(), manifest.graphs
    )
    meter = None if options.memory_cap_bytes is None else CostMeter()

    with ExitStack() as on_failure:
        cache = KVCache(
            CacheGeometry.of(manifest.dimensions, slots=options.slots, capacity=context)
        )
        on_failure.callback(cache.close)

        def open_graph(graph: GraphEntry, request: ProviderRequest) -> OpenedGraph:
            require_version(graph.oldest_onnxruntime, f"{manifest.name}'s graph")
            together = _belonging(manifest.graphs, graph)
            for one in together:
                check_locations(bundle, one)
            mapped = MappedFiles([bundle.file(name) for name in graph.weights])
            settings = SessionOptions(
                threads, request.name, request.options, optimize=graph.dialect != "fused"
            )
            size = manifest.dimensions.vocabulary_size
            with mapped.opening():
                runner: OrtModelRunner | PortableRunner
                if graph.dialect == "fused":
                    file = bundle.file(graph.file)
                    runner = OrtModelRunner(file, cache, vocabulary_size=size, options=settings)
                else:
                    files = [bundle.file(one.file) for one in together]
                    runner = PortableRunner(files, cache, vocabulary_size=size, options=settings)
            on_failure.callback(_close_runner, runner, mapped)
            return OpenedGraph(runner, mapped)

        def find_graph(provider: str) -> GraphEntry:
            return graph_for(manifest.graphs, provider, dialects=_DIALECTS, where=str(path))

        # onnxruntime leaves the interpreter free while it opens the graph: the text side loads
        # meanwhile.
        with ThreadPoolExecutor(1) as pool:
            opening = pool.submit(
                first_that_runs, requests, require_provider, find_graph, open_graph
            )
            tokenizer = BundleTokenizer.load(
                bundle.file(TOKENIZER_NAME), bos_token_id=manifest.tokenizer.bos_token_id
            )
            chat_template = _chat_template(bundle, tokenizer)
            chosen = opening.result()
        for step in chosen.steps_down:
            warnings.warn(f"{step}; {chosen.request.name} runs instead", ProviderWarning, 3)
        runner, mapped = chosen.opened.runner, chosen.opened.mapped_weights
        context = min(context, chosen.graph.capacity or context)
        mapped.drop_pages()
        trim_heap()
        plan = None
        if meter is not None and options.memory_cap_bytes is not None:
            costs = meter.measure(
                runner,
                cache,
                mapped_bytes=mapped.size_bytes,
                chunk_size=options.chunk_size,
                logits_rows=max(options.slots, 1 + MAX_DRAFT_TOKENS),
            )
            ask = MemoryAsk(context, options.slots, options.chunk_size)
            plan = plan_memory(options.memory_cap_bytes, costs, ask)
            granted = plan.granted
            context = granted.context_length
            options = replace(options, slots=granted.slots, chunk_size=granted.chunk_size)
        on_failure.pop_all()
        return EngineParts(
            manifest=manifest,
            runner=runner,
            tokenizer=tokenizer,
            chat_template=chat_template,
            context_length=context,
            cache=cache,
            mapped_weights=mapped,
            options=options,
            memory_plan=plan,
            provider=ProviderReport(
                chosen.request.name,
                chosen.graph,
                chosen.reason,
                chosen.steps_down,
                runner.assignment,
            ),
        )


def _belonging(graphs: Sequence[GraphEntry], one: GraphEntry) -> list[GraphEntry]:
    """The graphs that share a step with ``one``: for chunks and for single tokens."""
    kind = (one.dialect, one.precision, one.capacity, one.providers)
    return [g for g in graphs if (g.dialect, g.precision, g.capacity, g.providers) == kind]


def _close_runner(runner: OrtModelRunner | PortableRunner, mapped: MappedFiles) -> None:
    with mapped.closing():
        runner.close()


def check_locations(bundle: Bundle, graph: GraphEntry) -> None:
    """Refuse a graph that reads files which the manifest does not vouch for."""
    try:
        model = bundle.file(graph.file).read_bytes()
    except OSError as exc:
        raise IntegrityError(f"{bundle.path / graph.file}: cannot be read: {exc}") from exc
    folder = PurePosixPath(graph.file).parent
    for location in sorted(external_locations(model)):
        if (folder / location).as_posix() not in graph.weights:
            raise ManifestError(
                f"{bundle.path / graph.file} reads {location!r:.100}, which the manifest does not "
                "list among its weights"
            )


def _chat_template(bundle: Bundle, tokenizer: Tokenizer) -> ChatTemplate | None:
    if not bundle.has(CHAT_TEMPLATE_NAME):
        return None
    try:
        source = bundle.file(CHAT_TEMPLATE_NAME).read_text(encoding="utf-8")
    except ValueError:
        return None  # not UTF-8, so no template: the error for having none says what to do
    if not source.strip():
        return None
    template = ChatTemplate(source, special_tokens=_special_tokens(bundle, tokenizer))
    # A broken template is found by whoever renders it: text without it still runs.
    with suppress(ChatTemplateError):
        template.compile()
    return template


def _special_tokens(bundle: Bundle, tokenizer: Tokenizer) -> dict[str, str]:
    """The special tokens by the names that templates know them by.

    tokenizer_config.json says which of several end tokens is ``eos_token``; without it the first
    is a guess.
    """
    entry = bundle.manifest.tokenizer
    ids = {"bos_token": entry.bos_token_id, "eos_token": next(iter(entry.end_token_ids), None)}
    special = {name: tokenizer.id_to_token(i) for name, i in ids.items() if i is not None}
    if not bundle.has(TOKENIZER_CONFIG_NAME):
        return special
    with suppress(ValueError, RecursionError):
        config = json.loads(bundle.file(TOKENIZER_CONFIG_NAME).read_text(encoding="utf-8"))
        for name in _SPECIAL_TOKENS if isinstance(config, dict) else ():
            value = config.get(name)
            # Hugging Face writes a token as its text, or as an object that holds it.
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                special[name] = text
    return special
