"""From a bundle directory to the parts that an engine runs: session, cache, tokenizer, template.

Knows where each part is in a bundle; knows no request. When any part does not load, those that did
are closed again.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from edge_runtime.bundle import (
    CHAT_TEMPLATE_NAME,
    TOKENIZER_CONFIG_NAME,
    TOKENIZER_NAME,
    Bundle,
    CacheType,
    Manifest,
)
from edge_runtime.engine.kv_cache import KVCache
from edge_runtime.engine.memory_limit import with_cap_if_near
from edge_runtime.engine.memory_measure import CostMeter
from edge_runtime.engine.memory_plan import MemoryAsk, MemoryCosts, MemoryPlan, plan_memory
from edge_runtime.engine.model_runner import OrtModelRunner
from edge_runtime.engine.open_model import ModelOpener, OpenedModel
from edge_runtime.engine.options import EngineOptions, context_length
from edge_runtime.engine.portable_runner import PortableRunner
from edge_runtime.errors import ChatTemplateError, ManifestError
from edge_runtime.generation.speculation import MAX_DRAFT_TOKENS
from edge_runtime.providers.memory_advice import MappedFiles, trim_heap
from edge_runtime.providers.select import ProviderReport, ProviderWarning
from edge_runtime.providers.threads import plan_threads
from edge_runtime.text.chat_template import ChatTemplate
from edge_runtime.text.tokenizer import BundleTokenizer, Tokenizer

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
    opener = ModelOpener(
        bundle,
        providers=options.providers,
        threads=plan_threads(options.threads),
        slots=options.slots,
        capacity=context,
    )
    meter = None if options.memory_cap_bytes is None else CostMeter()
    cache_type = options.cache_type

    with ExitStack() as on_failure:

        def open_model(cache_type: CacheType) -> OpenedModel:
            model = opener.open(cache_type)
            on_failure.callback(model.close)
            model.mapped_weights.drop_pages()
            trim_heap()
            return model

        # onnxruntime leaves the interpreter free while it opens the graph: the text side loads
        # meanwhile.
        with ThreadPoolExecutor(1) as pool:
            opening = pool.submit(open_model, cache_type)
            tokenizer = BundleTokenizer.load(
                bundle.file(TOKENIZER_NAME), bos_token_id=manifest.tokenizer.bos_token_id
            )
            chat_template = _chat_template(bundle, tokenizer)
            model = opening.result()
        context = min(context, model.chosen.graph.capacity or context)
        plan = None
        if meter is not None and options.memory_cap_bytes is not None:

            def int8_costs() -> MemoryCosts:
                nonlocal model
                on_failure.pop_all().close()  # the weights are in memory once, whatever the rung
                model = open_model("int8")
                return _costs(meter, model, options.chunk_size)

            plan = plan_memory(
                options.memory_cap_bytes,
                _costs(meter, model, options.chunk_size),
                MemoryAsk(context, options.slots, options.chunk_size, cache_type),
                int8_costs=int8_costs if opener.can_open("int8") else None,
            )
            granted = plan.granted
            context = granted.context_length
            options = replace(
                options,
                slots=granted.slots,
                chunk_size=granted.chunk_size,
                cache_type=granted.cache_type,
            )
        chosen = model.chosen
        for step in chosen.steps_down:
            warnings.warn(f"{step}; {chosen.request.name} runs instead", ProviderWarning, 3)
        on_failure.pop_all()
        return EngineParts(
            manifest=manifest,
            runner=model.runner,
            tokenizer=tokenizer,
            chat_template=chat_template,
            context_length=context,
            cache=model.cache,
            mapped_weights=model.mapped_weights,
            options=options,
            memory_plan=plan,
            provider=ProviderReport(
                chosen.request.name,
                chosen.graph,
                chosen.reason,
                chosen.steps_down,
                model.runner.assignment,
            ),
        )


def _costs(meter: CostMeter, model: OpenedModel, chunk_size: int) -> MemoryCosts:
    return meter.measure(
        model.runner,
        model.cache,
        mapped_bytes=model.mapped_weights.size_bytes,
        chunk_size=chunk_size,
        logits_rows=max(model.cache.geometry.slots, 1 + MAX_DRAFT_TOKENS),
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
