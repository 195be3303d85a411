"""A bundle's graph opened over a cache of its own: which graph, on which provider, checked.

A bundle may hold a graph for each type of cache; they share the weights. Only one is open at a time,
since each session has the weights in memory once. Knows no request, no text and no memory cap.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath

from edge_runtime.bundle import Bundle, CacheType, GraphEntry
from edge_runtime.engine.kv_cache import CacheGeometry, KVCache
from edge_runtime.engine.model_runner import OrtModelRunner
from edge_runtime.engine.portable_runner import PortableRunner
from edge_runtime.errors import IntegrityError, InvalidParameterError, ManifestError, ProviderError
from edge_runtime.providers.external_data import external_locations
from edge_runtime.providers.memory_advice import MappedFiles
from edge_runtime.providers.ort import onnxruntime, require_version
from edge_runtime.providers.select import (
    Chosen,
    ProviderRequest,
    first_that_runs,
    graph_for,
    requests_for,
)
from edge_runtime.providers.session import SessionOptions, require_provider
from edge_runtime.providers.threads import ThreadPlan

_DIALECTS = ("fused", "portable")


@dataclass(frozen=True)
class OpenedGraph:
    """A runner, and the weights files that its session reads."""

    runner: OrtModelRunner | PortableRunner
    mapped_weights: MappedFiles

    def close(self) -> None:
        """Let the session go."""
        with self.mapped_weights.closing():
            self.runner.close()


@dataclass(frozen=True)
class OpenedModel:
    """A graph that runs, its cache, and why this graph and provider."""

    cache: KVCache
    chosen: Chosen[OpenedGraph]

    @property
    def runner(self) -> OrtModelRunner | PortableRunner:
        """Evaluates tokens over the cache."""
        return self.chosen.opened.runner

    @property
    def mapped_weights(self) -> MappedFiles:
        """The weights files that the session reads."""
        return self.chosen.opened.mapped_weights

    def close(self) -> None:
        """Let session and cache go."""
        self.chosen.opened.close()
        self.cache.close()


class ModelOpener:
    """Opens a bundle's graphs, one after another.

    Args:
        bundle: verified.
        providers: as :class:`edge_runtime.engine.options.EngineOptions` has them.
        threads: of a session.
        slots: rows of the cache.
        capacity: tokens of a row.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        providers: Sequence[str],
        threads: ThreadPlan,
        slots: int,
        capacity: int,
    ) -> None:
        self._bundle = bundle
        self._providers = providers
        self._threads = threads
        self._slots = slots
        self._capacity = capacity

    def open(self, cache_type: CacheType) -> OpenedModel:
        """Open the graph over one type of cache.

        Raises:
            InvalidParameterError: the bundle has no such graph, or a provider is asked for in a
                way that makes no sense.
            BundleError: the graph is not the one that the manifest describes.
            ProviderError: no onnxruntime, one too old for the graph, or it does not open the graph.
            RunError: the system refuses the cache's address space.
        """
        manifest = self._bundle.manifest
        graphs = self._graphs(cache_type)
        if not graphs:
            raise InvalidParameterError(
                f"{self._bundle.path} has no graph over an {cache_type} cache",
                hint="export it again: exports have one, where onnxruntime is there to measure its "
                "scales",
            )
        requests = requests_for(self._providers, onnxruntime().get_available_providers(), graphs)
        cache = KVCache(
            CacheGeometry.of(
                manifest.dimensions,
                slots=self._slots,
                capacity=self._capacity,
                cache_type=cache_type,
            )
        )

        def find_graph(provider: str) -> GraphEntry:
            return graph_for(graphs, provider, dialects=_DIALECTS, where=str(self._bundle.path))

        def open_graph(graph: GraphEntry, request: ProviderRequest) -> OpenedGraph:
            return self._open_graph(graph, request, cache)

        try:
            return OpenedModel(
                cache, first_that_runs(requests, require_provider, find_graph, open_graph)
            )
        except BaseException:
            cache.close()
            raise

    def can_open(self, cache_type: CacheType) -> bool:
        """Whether there is a graph over this type of cache that this onnxruntime is new enough for."""
        with suppress(ProviderError):
            for graph in self._graphs(cache_type):
                require_version(graph.oldest_onnxruntime, graph.file)
                return True
        return False

    def _graphs(self, cache_type: CacheType) -> tuple[GraphEntry, ...]:
        graphs = self._bundle.manifest.graphs
        return tuple(graph for graph in graphs if graph.cache_type == cache_type)

    def _open_graph(
        self, graph: GraphEntry, request: ProviderRequest, cache: KVCache
    ) -> OpenedGraph:
        bundle, manifest = self._bundle, self._bundle.manifest
        kind = "" if graph.cache_type == "float32" else f" over an {graph.cache_type} cache"
        require_version(graph.oldest_onnxruntime, f"{manifest.name}'s graph{kind}")
        together = _belonging(self._graphs(cache.geometry.cache_type), graph)
        for one in together:
            check_locations(bundle, one)
        mapped = MappedFiles([bundle.file(name) for name in graph.weights])
        settings = SessionOptions(
            self._threads, request.name, request.options, optimize=graph.dialect != "fused"
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
        return OpenedGraph(runner, mapped)


def _belonging(graphs: Sequence[GraphEntry], one: GraphEntry) -> list[GraphEntry]:
    """The graphs that share a step with ``one``: for chunks and for single tokens."""
    kind = (one.dialect, one.precision, one.capacity, one.providers)
    return [g for g in graphs if (g.dialect, g.precision, g.capacity, g.providers) == kind]


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
