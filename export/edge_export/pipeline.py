"""Checkpoint to bundle, from end to end.

Composes the rooms beside it and reports progress; each step's how lives in its room.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from edge_export.architectures.encoder import is_encoder, read_encoder_spec
from edge_export.architectures.registry import read_spec
from edge_export.architectures.spec import DecoderSpec
from edge_export.encoder_pipeline import (
    EncoderWeights,
    embedding_entry,
    encoder_dimensions,
    encoder_graph,
    write_encoder,
)
from edge_export.genai import genai_config, write_genai
from edge_export.graph.decoder import build_decoder
from edge_export.int8_cache import write_int8_cache_graph
from edge_export.portable_graphs import PortableRequest, write_portable_graphs
from edge_export.quantize.calibration import Calibration
from edge_export.quantize.calibration_text import calibration_windows
from edge_export.quantize.gptq import COMPENSATION_BYTES, LARGEST_WIDTH
from edge_export.quantize.recipes import (
    CALIBRATED_BLOCK_SIZE,
    QuantizedGroupStats,
    Recipe,
    add_stats,
)
from edge_export.source_weights import SourceWeights
from edge_export.sources.checkpoint import Checkpoint
from edge_export.sources.source_model import SourceModel, open_source
from edge_export.sources.tokenizer_files import TokenizerFiles
from edge_export.validate import validate_bundle, validate_encoder
from edge_export.weights import DecoderWeights
from edge_export.write import (
    WeightsFile,
    bundle_directory,
    file_entries,
    write_manifest,
    write_text,
)
from edge_runtime import __version__
from edge_runtime.bundle import (
    CHAT_TEMPLATE_NAME,
    SCHEMA_VERSION,
    TOKENIZER_NAME,
    GraphEntry,
    Manifest,
    ModelDimensions,
    Quantization,
    QuantizedGroup,
    SourceEntry,
    TokenizerEntry,
)
from edge_runtime.errors import UsageError

GRAPH_NAME = "decoder.onnx"
WEIGHTS_NAME = "decoder.weights"
# Providers that were seen to run the fused graph with the CPU's tokens.
FUSED_PROVIDERS = ("CPUExecutionProvider", "OpenVINOExecutionProvider")

_BYTES_PER_4_BIT_WEIGHT = 0.55
_MEMORY_ABOVE_BUNDLE = 500_000_000
_EXPORTERS_OWN = 300_000_000  # libraries, a layer in float32, the text's states


@dataclass(frozen=True)
class ExportOptions:
    """What to make.

    Args:
        quant: ``auto`` keeps every weight as exactly as 4 or 8 bits can; ``int8`` and ``int4`` say
            how many bits; ``f32`` keeps what the source means, to compare with.
        calibrate: under ``int4``, round so that layers' outputs on a text change little, which
            takes most of a minute for each 135M weights; False rounds the weights alone.
        context_length: tokens that the bundle reaches; None takes the model's own, and for
            longrope and dynamic rotary scaling the original context, up to which their
            frequencies are the unscaled ones.
        name: the model's name in the manifest; None takes the source's.
        overwrite: replace a bundle that is already there.
        portable: graphs beside the fused one, for devices whose providers want them.
    """

    quant: Recipe = "auto"
    calibrate: bool = True
    context_length: int | None = None
    name: str | None = None
    overwrite: bool = False
    portable: tuple[PortableRequest, ...] = ()


@dataclass(frozen=True)
class ExportProgress:
    """How far an export is: the stage, and bytes of source weights done and in all."""

    stage: str
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class ExportReport:
    """What an export made, and in how many seconds."""

    bundle_path: Path
    manifest: Manifest
    seconds: float


def export_model(
    source: Path,
    destination: Path,
    options: ExportOptions | None = None,
    progress: Callable[[ExportProgress], None] | None = None,
) -> ExportReport:
    """Turn a GGUF file or a Hugging Face directory into a bundle directory.

    Args:
        source: the file or directory.
        destination: the directory to make; it appears whole or not at all.
        options: None takes the defaults.
        progress: called as weights are written.

    Raises:
        ExportError: the source cannot be read or is of an unknown kind, or the disk refused.
        ModelNotFoundError: there is no source.
        TokenizerError: its vocabulary cannot be built.
        UsageError: the destination exists, or the options contradict each other.
    """
    options = options or ExportOptions()
    report = progress or _ignore
    started_s = time.monotonic()
    if options.portable and options.quant == "int4-exact":
        raise UsageError(
            "int4-exact has no portable form: other providers know no blocks of means",
            hint="use --quant int8 or int4 for this device",
        )
    model = open_source(source)
    if is_encoder(model.checkpoint):
        return _export_encoder(model, source, destination, options, report, started_s)
    with model.checkpoint as checkpoint:
        spec = read_spec(checkpoint, options.context_length)
        tokenizer = model.tokenizer(spec.vocabulary_size)
        generation = model.generation()
        with bundle_directory(destination, overwrite=options.overwrite) as directory:
            source_weights = SourceWeights(spec, checkpoint)
            calibration = None
            if options.quant == "int4" and options.calibrate:
                calibration = _calibration(spec, source_weights, tokenizer, checkpoint, report)
            weights = DecoderWeights(
                source_weights,
                options.quant,
                calibration=calibration,
                on_tensor=_tensor_progress(checkpoint, report),
            )
            graph = _write_graph(spec, weights, directory)
            _write_tokenizer(tokenizer, directory)
            dimensions = _dimensions(spec)
            tokenizer_entry = TokenizerEntry(
                end_token_ids=tokenizer.end_token_ids,
                bos_token_id=tokenizer.bos_token_id,
                add_bos=tokenizer.add_bos,
            )
            write_genai(directory, graph, genai_config(dimensions, tokenizer_entry, generation))
            fused = GraphEntry(
                file=GRAPH_NAME,
                weights=(WEIGHTS_NAME,),
                dialect="fused",
                precision=options.quant,
                providers=FUSED_PROVIDERS,
                oldest_onnxruntime="1.23",
            )
            portable = write_portable_graphs(directory, fused, options.portable)
            report(ExportProgress("checking", 1, 1))
            int8_cache = write_int8_cache_graph(
                directory, graph, fused, dimensions, _windows(spec, tokenizer)
            )
            manifest = Manifest(
                schema_version=SCHEMA_VERSION,
                name=options.name or model.name,
                architecture=spec.architecture,
                producer=f"edge-runtime {__version__}",
                license=model.license,
                dimensions=dimensions,
                tokenizer=tokenizer_entry,
                graphs=(fused, *portable, *int8_cache),
                quantization=Quantization(
                    options.quant,
                    group_stats(weights.stats),
                    method=None if calibration is None else _method(spec, checkpoint),
                ),
                files=file_entries(directory),
                source=SourceEntry(checkpoint.format, source.resolve().name, model.sha256()),
                generation=generation,
            )
            write_manifest(directory, manifest)
            validate_bundle(directory, manifest)
    return ExportReport(destination, manifest, time.monotonic() - started_s)


def _export_encoder(
    model: SourceModel,
    source: Path,
    destination: Path,
    options: ExportOptions,
    report: Callable[[ExportProgress], None],
    started_s: float,
) -> ExportReport:
    """As :func:`export_model`, of a model that embeds."""
    with model.checkpoint as checkpoint:
        spec = read_encoder_spec(checkpoint)
        tokenizer = model.tokenizer(spec.vocabulary_size)
        with bundle_directory(destination, overwrite=options.overwrite) as directory:
            progress = _tensor_progress(checkpoint, report)
            weights = EncoderWeights(spec, checkpoint, options.quant, progress)
            write_encoder(spec, weights, directory)
            _write_tokenizer(tokenizer, directory)
            report(ExportProgress("checking", 1, 1))
            manifest = Manifest(
                schema_version=SCHEMA_VERSION,
                name=options.name or model.name,
                architecture=spec.architecture,
                producer=f"edge-runtime {__version__}",
                license=model.license,
                dimensions=encoder_dimensions(spec),
                tokenizer=TokenizerEntry(end_token_ids=()),
                graphs=(encoder_graph(options.quant),),
                quantization=Quantization(options.quant, group_stats(weights.stats)),
                files=file_entries(directory),
                source=SourceEntry(checkpoint.format, source.resolve().name, model.sha256()),
                embedding=embedding_entry(spec),
            )
            write_manifest(directory, manifest)
            validate_encoder(directory)
    return ExportReport(destination, manifest, time.monotonic() - started_s)


def group_stats(stats: Sequence[tuple[str, QuantizedGroupStats]]) -> tuple[QuantizedGroup, ...]:
    """Sum matrices of one role that went the same way into the groups of the manifest."""
    groups: dict[tuple[str, str, str], list[QuantizedGroupStats]] = {}
    for role, item in stats:
        groups.setdefault((role, item.source_kind, item.stored_as), []).append(item)
    return tuple(add_stats(items).as_group(role) for (role, *_), items in groups.items())


def _calibration(
    spec: DecoderSpec,
    weights: SourceWeights,
    tokenizer: TokenizerFiles,
    checkpoint: Checkpoint,
    report: Callable[[ExportProgress], None],
) -> Calibration:
    total = sum(t.size_bytes for t in checkpoint.tensors.values())

    def on_layer(done: int) -> None:
        report(ExportProgress("calibrating", total * done // spec.layers, total))

    return Calibration(
        spec,
        weights,
        _windows(spec, tokenizer),
        widest=_widest_compensated(checkpoint),
        on_layer=on_layer,
    )


def _windows(spec: DecoderSpec, tokenizer: TokenizerFiles) -> list[NDArray[np.int64]]:
    return calibration_windows(
        tokenizer.tokenizer_json,
        begin_token_id=tokenizer.bos_token_id if tokenizer.add_bos else None,
        context_length=spec.context_length,
    )


def _widest_compensated(checkpoint: Checkpoint) -> int:
    """How wide an input may be for its rounding to stay within the memory an export may take.

    That is what the bundle will take and half a gigabyte more. Rounding that makes up for its
    errors takes 40 bytes times the square of the width.
    """
    values = sum(math.prod(tensor.shape) for tensor in checkpoint.tensors.values())
    allowed = _BYTES_PER_4_BIT_WEIGHT * values + _MEMORY_ABOVE_BUNDLE - _EXPORTERS_OWN
    return min(LARGEST_WIDTH, math.isqrt(int(allowed / COMPENSATION_BYTES)))


def _method(spec: DecoderSpec, checkpoint: Checkpoint) -> str:
    method = f"gptq, block {CALIBRATED_BLOCK_SIZE}"
    widest = _widest_compensated(checkpoint)
    if max(spec.hidden_size, spec.feed_forward_size, spec.heads * spec.head_size) <= widest:
        return method
    return f"{method}; inputs of more than {widest} values by importance alone"


def _write_graph(spec: DecoderSpec, weights: DecoderWeights, directory: Path) -> onnx.ModelProto:
    with WeightsFile(directory / WEIGHTS_NAME) as file:
        model = build_decoder(spec, weights, file)
    onnx.save_model(model, str(directory / GRAPH_NAME))
    return model


def _write_tokenizer(tokenizer: TokenizerFiles, directory: Path) -> None:
    write_text(directory / TOKENIZER_NAME, tokenizer.tokenizer_json)
    write_text(directory / "tokenizer_config.json", tokenizer.tokenizer_config_json)
    if tokenizer.chat_template:
        write_text(directory / CHAT_TEMPLATE_NAME, tokenizer.chat_template)


def _dimensions(spec: DecoderSpec) -> ModelDimensions:
    return ModelDimensions(
        layers=spec.layers,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_size=spec.head_size,
        hidden_size=spec.hidden_size,
        vocabulary_size=spec.vocabulary_size,
        context_length=spec.context_length,
    )


def _tensor_progress(
    checkpoint: Checkpoint, report: Callable[[ExportProgress], None]
) -> Callable[[int], None]:
    total = sum(t.size_bytes for t in checkpoint.tensors.values())
    done = 0

    def advance(size_bytes: int) -> None:
        nonlocal done
        done = min(total, done + size_bytes)
        report(ExportProgress("weights", done, total))

    report(ExportProgress("weights", 0, total))
    return advance


def _ignore(_: ExportProgress) -> None:
    return None
