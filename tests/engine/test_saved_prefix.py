"""Warm slots and files: what goes where, inside the budget, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge_runtime.engine.admission import TokenBudget
from edge_runtime.engine.executor import Executor
from edge_runtime.engine.kv_cache import CacheGeometry, KVCache
from edge_runtime.engine.prefix_file import PrefixKey
from edge_runtime.engine.saved_prefix import SavedPrefixes
from edge_runtime.engine.scheduler import Scheduler
from edge_runtime.engine.sequence import Sequence
from edge_runtime.errors import PrefixFileError, PromptTooLongError, UsageError
from edge_runtime.generation.params import SamplingParams
from edge_runtime.testing import ScriptedRunner

KEY = PrefixKey(
    weights=("a" * 64,), graph="b" * 64, recipe="auto", cache_type="float32",
    layers=2, kv_heads=2, head_size=64, provider="CPU", onnxruntime="1.32", machine="x86_64",
)  # fmt: skip
CAPACITY = 64


class Place:
    """A cache, the slots in it, and what saves and restores them."""

    def __init__(self, *, slots: int = 2, budget: int | None = None, context: int = CAPACITY):
        self.cache = KVCache(CacheGeometry(2, slots, 2, CAPACITY, 64))
        self.scheduler = Scheduler(
            slots=slots, chunk_size=CAPACITY, budget=TokenBudget(budget, context_length=context)
        )
        self.saved = SavedPrefixes(
            KEY, name="tiny", scheduler=self.scheduler,
            executor=Executor(ScriptedRunner(lambda seen: 1, vocabulary_size=99), self.cache),
            context_length=context, vocabulary_size=99,
        )  # fmt: skip

    def hold(self, tokens: list[int], value: float) -> int:
        """A slot that holds these tokens, with one value in all of their keys and values."""
        room = self.scheduler.make_room(len(tokens))
        assert room is not None
        for row in self.cache.rows(room[0], tokens=len(tokens)):
            row[...] = value
        self.scheduler.fill(room[0], tokens)
        return room[0]

    def start(self, *prompt: int) -> Sequence:
        sequence = Sequence(prompt, SamplingParams(max_tokens=1))
        self.scheduler.add(sequence)
        self.scheduler.schedule()
        return sequence


def test_a_restored_prompt_is_warm_where_it_was_put(tmp_path: Path):
    one, other = Place(), Place()
    one.hold([1, 2, 3, 4], 0.5)
    one.saved.save([1, 2, 3], tmp_path / "x.kv", system="s")
    header = other.saved.load(tmp_path / "x.kv")
    assert (header.tokens, header.system, other.scheduler.held_tokens) == (3, "s", 3)
    sequence = other.start(1, 2, 3, 9)
    assert sequence.cached_tokens == 3
    assert sequence.slot is not None
    for row in other.cache.rows(sequence.slot, tokens=4):
        assert (row[:, :3] == 0.5).all() and (row[:, 3] == 0).all()


def test_only_what_a_slot_holds_can_be_saved(tmp_path: Path):
    place = Place()
    place.hold([1, 2, 3], 0.5)
    with pytest.raises(UsageError, match="no slot holds"):
        place.saved.save([1, 2, 3, 4], tmp_path / "x.kv", system=None)


def test_a_prompt_takes_the_slot_with_least_to_lose(tmp_path: Path):
    place = Place()
    place.hold(list(range(1, 30)), 0.5)
    place.saved.save(list(range(1, 30)), tmp_path / "x.kv", system=None)
    place.hold(list(range(40, 44)), 0.25)
    place.saved.load(tmp_path / "x.kv")
    assert place.scheduler.slot_of(list(range(1, 30))) is not None
    assert place.scheduler.slot_of(list(range(40, 44))) is None


def test_warm_prompts_give_way_so_that_all_stays_inside_the_budget(tmp_path: Path):
    place = Place(slots=3, budget=50, context=40)
    place.hold(list(range(1, 31)), 0.5)
    place.saved.save(list(range(1, 31)), tmp_path / "x.kv", system=None)
    place.hold(list(range(40, 60)), 0.25)
    place.saved.load(tmp_path / "x.kv")
    assert place.scheduler.held_tokens <= 50
    assert place.scheduler.slot_of(list(range(1, 31))) is not None


def test_without_a_free_slot_there_is_no_room(tmp_path: Path):
    place = Place(slots=1)
    place.hold([1, 2, 3], 0.5)
    place.saved.save([1, 2, 3], tmp_path / "x.kv", system=None)
    place.start(7, 8)
    with pytest.raises(UsageError, match="no room"):
        place.saved.load(tmp_path / "x.kv")


def test_a_longer_prompt_than_the_context_is_refused(tmp_path: Path):
    place = Place()
    place.hold(list(range(1, 31)), 0.5)
    place.saved.save(list(range(1, 31)), tmp_path / "x.kv", system=None)
    with pytest.raises(PromptTooLongError):
        Place(context=20).saved.load(tmp_path / "x.kv")
    notice = Place(context=20).saved.load_of_bundle(tmp_path / "x.kv")
    assert notice is not None and "30 tokens" in notice


def test_nothing_of_a_damaged_file_is_used(tmp_path: Path):
    path = tmp_path / "x.kv"
    one, other = Place(), Place()
    one.hold([1, 2, 3], 0.5)
    one.saved.save([1, 2, 3], path, system=None)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(PrefixFileError, match="damaged"):
        other.saved.load(path)
    assert other.scheduler.held_tokens == 0
    assert not any(np.any(row) for slot in (0, 1) for row in other.cache.rows(slot, tokens=3))
    assert other.start(1, 2, 3, 9).cached_tokens == 0
