from __future__ import annotations

from pathlib import Path

from support.simulated_machine import JETSON, simulated

from edge_runtime.providers.catalog import load_providers
from edge_runtime.providers.machine import Accelerator


def test_a_jetsons_gpu_shares_the_cpus_memory(tmp_path: Path) -> None:
    machine = simulated(tmp_path, board=JETSON, architecture="aarch64").machine()
    assert machine.is_jetson and machine.board == JETSON
    assert machine.accelerators == (
        Accelerator("gpu", "nvidia", f"{JETSON} GPU", 8 << 30, shares_memory=True),
    )


def test_a_graphics_card_has_its_own_as_the_driver_says(tmp_path: Path) -> None:
    facts = simulated(
        tmp_path,
        nvidia=True,
        pci={"drm/card0": "0x8086", "drm/card1": "0x10de", "drm/card1-DP-1": "0x10de"},
        run=lambda command: "NVIDIA GeForce RTX 4060 Laptop GPU, 8188\n",
    )
    nvidia, intel = facts.machine().accelerators
    assert (nvidia.name, nvidia.memory_bytes) == ("NVIDIA GeForce RTX 4060 Laptop GPU", 8188 << 20)
    assert not nvidia.shares_memory
    assert (intel.vendor, intel.kind) == ("intel", "gpu")


def test_without_nvidia_smi_the_kernels_name_is_what_there_is(tmp_path: Path) -> None:
    (gpu,) = simulated(tmp_path, nvidia=True).machine().accelerators
    assert (gpu.name, gpu.memory_bytes) == ("NVIDIA RTX 4060", None)


def test_a_driver_that_does_not_report_memory_is_no_number(tmp_path: Path) -> None:
    facts = simulated(tmp_path, nvidia=True, run=lambda command: "Orin (nvgpu), [N/A]\n")
    assert facts.machine().accelerators[0].memory_bytes is None


def test_an_npu_is_found(tmp_path: Path) -> None:
    machine = simulated(tmp_path, pci={"accel/accel0": "0x8086"}).machine()
    (npu,) = machine.accelerators
    assert (npu.kind, npu.vendor) == ("npu", "intel")


def test_other_names_of_an_architecture_are_one(tmp_path: Path) -> None:
    machine = simulated(tmp_path, architecture="arm64", system="darwin").machine()
    assert machine.architecture == "aarch64"
    assert {a.vendor for a in machine.accelerators} == {"apple"}
    assert simulated(tmp_path / "w", architecture="AMD64").machine().architecture == "x86_64"


def test_a_machine_that_tells_nothing_is_still_one(tmp_path: Path) -> None:
    facts = simulated(tmp_path)
    (tmp_path / "proc/meminfo").unlink()
    machine = facts.machine()
    assert (machine.memory_bytes, machine.board, machine.accelerators) == (None, None, ())
    assert not machine.battery


def test_libraries_that_do_not_load_are_named_with_their_versions(tmp_path: Path) -> None:
    cuda = load_providers().find("cuda")
    facts = simulated(tmp_path, libraries=["libcudart.so.13", "libcudnn.so.9"])
    assert facts.missing_libraries(cuda) == ("libcublasLt.so.12 or libcublasLt.so.13",)
    windows = simulated(tmp_path / "w", system="windows")
    assert windows.missing_libraries(cuda) == ()
