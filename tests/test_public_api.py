"""The public names are locked: adding or removing one is a decision, made here too."""

from __future__ import annotations

import edge_runtime


def test_the_public_names_are_exactly_these():
    assert edge_runtime.__all__ == [
        "BeamParams", "Bundle", "Candidate", "Completion", "Delta", "EdgeRuntimeError", "Engine",
        "EngineOptions",
        "FinishReason", "SamplingParams", "TokenDelta", "Usage", "__version__",
    ]  # fmt: skip


def test_every_public_name_resolves_and_is_listed():
    for name in edge_runtime.__all__:
        assert getattr(edge_runtime, name) is not None
    assert set(edge_runtime.__all__) <= set(dir(edge_runtime))
