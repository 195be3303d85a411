from __future__ import annotations

from pathlib import Path

import pytest

from edge_runtime.errors import InvalidParameterError
from edge_runtime.providers import threads
from edge_runtime.providers.threads import plan_threads


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


class Machine:
    """A made-up /proc and /sys."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self._monkeypatch = root, monkeypatch

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    def processors(self, capacities: list[int], *, siblings: int = 1) -> None:
        allowed = list(range(len(capacities)))
        self._monkeypatch.setattr(threads, "_allowed_processors", lambda: allowed)
        for i, capacity in enumerate(capacities):
            first = i - i % siblings
            folder = f"sys/devices/system/cpu/cpu{i}"
            self.write(f"{folder}/cpu_capacity", str(capacity))
            self.write(f"{folder}/topology/thread_siblings_list", f"{first}-{first + siblings - 1}")


def test_equal_cores_are_all_used_and_not_pinned(machine: Machine) -> None:
    machine.processors([1024] * 4)
    plan = plan_threads(root=machine.root)
    assert (plan.count, plan.processors) == (4, ())


def test_hardware_threads_of_one_core_count_once(machine: Machine) -> None:
    machine.processors([1024] * 8, siblings=2)
    assert plan_threads(root=machine.root).count == 4


def test_little_cores_are_left_out(machine: Machine) -> None:
    machine.processors([512] * 4 + [1024] * 4)
    plan = plan_threads(root=machine.root)
    assert (plan.count, plan.processors) == (4, (4, 5, 6, 7))


def test_middle_cores_take_part(machine: Machine) -> None:
    machine.processors([300] * 4 + [850] * 3 + [1024])
    assert plan_threads(root=machine.root).processors == (4, 5, 6, 7)


def test_unknown_capacities_leave_all_cores(machine: Machine) -> None:
    machine.processors([0] * 4)
    assert plan_threads(root=machine.root).count == 4


@pytest.mark.parametrize(("quota", "expected"), [("200000 100000", 2), ("150000 100000", 2)])
def test_a_quota_of_cgroup_2_limits_the_count(machine: Machine, quota: str, expected: int) -> None:
    machine.processors([1024] * 8)
    machine.write("proc/self/cgroup", "0::/box/inner")
    machine.write("sys/fs/cgroup/box/cpu.max", quota)
    machine.write("sys/fs/cgroup/box/inner/cpu.max", "max 100000")
    plan = plan_threads(root=machine.root)
    assert plan.count == expected
    assert "quota" in plan.reason


def test_a_quota_of_cgroup_1_limits_the_count(machine: Machine) -> None:
    machine.processors([1024] * 8)
    machine.write("proc/self/cgroup", "4:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc")
    machine.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "300000")
    machine.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000")
    assert plan_threads(root=machine.root).count == 3


def test_no_quota_is_no_limit(machine: Machine) -> None:
    machine.processors([1024] * 8)
    machine.write("proc/self/cgroup", "0::/")
    machine.write("sys/fs/cgroup/cpu.max", "max 100000")
    assert plan_threads(root=machine.root).count == 8


def test_a_small_quota_still_gives_one_thread(machine: Machine) -> None:
    machine.processors([1024] * 2)
    machine.write("proc/self/cgroup", "0::/")
    machine.write("sys/fs/cgroup/cpu.max", "10000 100000")
    assert plan_threads(root=machine.root).count == 1


def test_a_number_asked_for_is_taken() -> None:
    assert plan_threads(3).count == 3


def test_no_threads_are_refused_by_value() -> None:
    with pytest.raises(InvalidParameterError, match="0"):
        plan_threads(0)


def test_this_machine_gives_a_plan() -> None:
    assert plan_threads().count >= 1


def test_threads_beyond_all_sense_are_refused_by_value() -> None:
    with pytest.raises(InvalidParameterError, match="threads is 1000000; it must be 1 to"):
        plan_threads(1_000_000)
