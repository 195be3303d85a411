"""Serve models over local HTTP, in OpenAI's and Ollama's forms, with a page at /."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edge_runtime.api.ollama_request import FOREVER, keep_alive_seconds
from edge_runtime.api.openai_error import RequestRefusedError
from edge_runtime.cli.reporting import Reporter
from edge_runtime.cli.session import add_running_arguments, asked_cap, default_limit
from edge_runtime.engine.memory_plan import parse_bytes
from edge_runtime.errors import InvalidParameterError, UsageError
from edge_runtime.file_hash import RememberedHashes
from edge_runtime.providers.memory_advice import keep_heap_small
from edge_runtime.store.home import Home
from edge_runtime.store.resolve import ensure_bundle

if TYPE_CHECKING:
    from edge_runtime.embedding.embedder import Embedder
    from edge_runtime.engine.engine import Engine
    from edge_runtime.server.embedders import OpenEmbedder
    from edge_runtime.server.models import OpenModel, ServedModel
    from edge_runtime.server.settings import ServerSettings

KEYS_VARIABLE = "EDGE_RUNTIME_API_KEY"
DEFAULT_PORT = 8080
DEFAULT_SLOTS = 4
_SEVERAL_KEEP_ALIVE_S = 300.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "models",
        metavar="MODEL",
        nargs="+",
        help="as for run; NAME=MODEL says what clients call it. The first is loaded at once, "
        "others when they are asked for",
    )
    parser.add_argument(
        "--embedding-model",
        action="append",
        default=[],
        metavar="MODEL",
        help="a model that embeds, or NAME=MODEL; loaded when it is first asked for",
    )
    reached = parser.add_argument_group("how it is reached")
    reached.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1, this machine")
    reached.add_argument(
        "--port",
        type=int,
        default=DEFAULT_PORT,
        help=f"default: {DEFAULT_PORT}; 0 takes a free one",
    )
    reached.add_argument(
        "--unix-socket", type=Path, metavar="PATH", help="instead of host and port"
    )
    reached.add_argument(
        "--api-key-file",
        type=Path,
        metavar="PATH",
        help=f"keys, one a line; or give them in {KEYS_VARIABLE}, with spaces between",
    )
    reached.add_argument(
        "--allow-without-key",
        action="store_true",
        help="let other machines use it without a key",
    )
    reached.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a further name under which it may be reached without a key",
    )
    reached.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let web pages of this origin use it (CORS), such as https://example.org",
    )
    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--slots",
        type=int,
        default=DEFAULT_SLOTS,
        metavar="N",
        help=f"answers that run at the same time (default: {DEFAULT_SLOTS})",
    )
    limits.add_argument(
        "--max-queue", type=int, default=64, metavar="N", help="answers that may wait (default: 64)"
    )
    limits.add_argument(
        "--max-n", type=int, default=8, metavar="N", help="answers to one request (default: 8)"
    )
    limits.add_argument(
        "--max-body", default="4M", metavar="SIZE", help="bytes of a request (default: 4M)"
    )
    limits.add_argument(
        "--request-timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="from a request to its last byte (default: 600)",
    )
    limits.add_argument(
        "--shutdown-timeout",
        type=float,
        default=20.0,
        metavar="SECONDS",
        help="for running answers to finish at the end (default: 20)",
    )
    limits.add_argument(
        "--keep-alive",
        metavar="DURATION",
        help="how long an idle model stays loaded, such as 5m; -1 is for ever "
        "(default: for ever for one model, 5m where there are several)",
    )
    add_running_arguments(parser)
    parser.add_argument(
        "--log-requests",
        action="store_true",
        help="a line for each request: route, status, tokens and time, never its words",
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM, which is exit code 0, or Ctrl-C."""
    keys = _api_keys(arguments.api_key_file)
    with server_required():
        from edge_runtime.server.context import ServerContext
        from edge_runtime.server.embedders import Embedders
        from edge_runtime.server.listening import is_loopback, tcp_socket, unix_socket, url_of
        from edge_runtime.server.models import ModelPool
        from edge_runtime.server.serving import serve
    settings = _settings(arguments, keys)
    cap = asked_cap(arguments)
    served = _served_models(arguments.models)
    embedding = _served_models(arguments.embedding_model)
    if twice := {one.name for one in served} & {one.name for one in embedding}:
        raise UsageError(f"two models would be called {min(twice)}", hint="name one: NAME=MODEL")
    keep_alive_s = _keep_alive(arguments.keep_alive, len(served))
    _open_log()
    if arguments.unix_socket is not None:
        listening, place = unix_socket(arguments.unix_socket), "unix socket"
    else:
        if not (is_loopback(arguments.host) or keys or arguments.allow_without_key):
            raise UsageError(
                f"{arguments.host} can be reached by other machines, and there is no API key",
                hint="--api-key-file FILE, or --allow-without-key if all of them may use it",
            )
        listening = tcp_socket(arguments.host, arguments.port)
        place = url_of(listening)
    keep_heap_small()
    pool = ModelPool(
        served,
        open_model=_opener(arguments),
        memory_cap_bytes=cap,
        keep_alive_s=keep_alive_s,
    )
    embedders = Embedders(
        embedding, open_embedder=_embedder_opener(arguments), max_waiting=settings.max_queue + 1
    )
    context = ServerContext(pool, settings, embedders)
    context.log.say(f"listening on {place}, loading {served[0].name}")
    serve(context, listening, over_network=arguments.unix_socket is None)
    return 0


def _settings(arguments: argparse.Namespace, keys: tuple[str, ...]) -> ServerSettings:
    from edge_runtime.server.settings import ServerSettings

    if arguments.slots < 1:
        raise InvalidParameterError(f"--slots is {arguments.slots}", hint="use 1 or more")
    return ServerSettings(
        api_keys=keys,
        allowed_hosts=tuple(arguments.allowed_host),
        allowed_origins=tuple(arguments.allow_origin),
        max_queue=arguments.max_queue,
        max_answers=arguments.max_n,
        max_body_bytes=parse_bytes(arguments.max_body),
        request_timeout_s=arguments.request_timeout,
        shutdown_timeout_s=arguments.shutdown_timeout,
        log_requests=arguments.log_requests,
    )


def _opener(arguments: argparse.Namespace) -> OpenModel:
    from edge_runtime.engine.engine import Engine, EngineOptions

    options = EngineOptions(
        context_length=arguments.context,
        threads=arguments.threads,
        slots=arguments.slots,
        max_waiting=arguments.max_queue + arguments.slots,
        speculation=arguments.speculation,
        cache_type=arguments.cache_type,
    )
    home = Home.find()

    def open_model(served: ServedModel, cap_bytes: int | None) -> Engine:
        with Reporter() as report:
            bundle = ensure_bundle(
                served.reference, quant=arguments.quant, report=report, home=home
            )
        engine = Engine.load(
            bundle,
            replace(options, memory_cap_bytes=cap_bytes, memory_limit=default_limit(arguments)),
            hash_file=RememberedHashes(home.hashes),
        )
        if engine.memory_plan is not None and engine.memory_plan.steps:
            steps = ", ".join(engine.memory_plan.steps)
            print(f"{served.name}, to stay under the cap: {steps}", file=sys.stderr, flush=True)
        for notice in engine.notices:
            print(f"{served.name}: {notice}", file=sys.stderr, flush=True)
        return engine

    return open_model


def _embedder_opener(arguments: argparse.Namespace) -> OpenEmbedder:
    home = Home.find()

    def open_embedder(served: ServedModel) -> Embedder:
        from edge_runtime.embedding.embedder import Embedder

        with Reporter() as report:
            bundle = ensure_bundle(served.reference, quant=None, report=report, home=home)
        return Embedder.load(
            bundle, threads=arguments.threads, hash_file=RememberedHashes(home.hashes)
        )

    return open_embedder


def _served_models(given: Sequence[str]) -> list[ServedModel]:
    from edge_runtime.server.models import ServedModel

    served: dict[str, ServedModel] = {}
    for text in given:
        name, equals, reference = text.partition("=")
        if not equals:
            # A path's own name, so that no client learns where it lies.
            name, reference = _name_of(text), text
        if not name or not reference:
            raise UsageError(f"{text!r} is not MODEL or NAME=MODEL")
        if name in served:
            raise UsageError(
                f"two models would be called {name}", hint=f"name one of them: NAME={reference}"
            )
        served[name] = ServedModel(name, reference)
    return list(served.values())


def _name_of(model: str) -> str:
    path = Path(model)
    is_path = path.suffix == ".gguf" or path.is_dir() or len(path.parts) > 1
    if model.startswith("hf:") or not is_path:
        return model
    name = path.resolve().name
    return name[: -len(".gguf")] if name.endswith(".gguf") else name


def _keep_alive(text: str | None, models: int) -> float:
    if text is None:
        return FOREVER if models == 1 else _SEVERAL_KEEP_ALIVE_S
    try:
        seconds = keep_alive_seconds(text)
    except RequestRefusedError as exc:
        raise InvalidParameterError(
            f"--keep-alive is {text!r}", hint="write it as 90s, 5m, 1h, or -1 for ever"
        ) from exc
    return FOREVER if seconds is None else seconds


def _api_keys(path: Path | None) -> tuple[str, ...]:
    """The keys of file and environment.

    Raises:
        UsageError: the file cannot be read or holds none, or a key is no plain word.
    """
    keys = os.environ.get(KEYS_VARIABLE, "").split()
    if path is not None:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as exc:
            why = getattr(exc, "strerror", None) or "it is not UTF-8"
            raise UsageError(f"{path} cannot be read: {why}") from exc
        found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not found:
            raise UsageError(f"{path} holds no key", hint="write one a line")
        keys += found
    for number, key in enumerate(keys, 1):
        if not (key.isascii() and key.isprintable() and " " not in key):
            raise UsageError(f"API key {number} has characters that no HTTP header can carry")
    return tuple(keys)


def _open_log() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    own = logging.getLogger("edge_runtime.server")
    own.setLevel(logging.INFO)
    own.handlers[:] = [handler]
    own.propagate = False
    # uvicorn's warnings quote what clients sent; its errors are told here.
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)


@contextmanager
def server_required() -> Iterator[None]:
    """Around code that imports the server: its missing packages become a UsageError.

    Raises:
        UsageError: the ``serve`` extra is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as exc:
        missing = (exc.name or "").split(".")[0]
        if missing not in ("fastapi", "starlette", "uvicorn", "prometheus_client"):
            raise  # not a missing extra: a broken installation, or a bug
        raise UsageError(
            f"serving needs the package {missing!r}, which is not installed",
            hint="pip install 'edge-runtime[serve]'",
        ) from exc
