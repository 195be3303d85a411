"""What this machine is: system, board, memory, and the accelerators that the kernel knows.

Reads /proc and /sys where they exist; asks nvidia-smi where there is an NVIDIA driver. Knows no
onnxruntime: what a provider offers is another question than what the machine has.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

_VENDORS = {
    "0x10de": "nvidia",
    "0x8086": "intel",
    "0x1002": "amd",
    "0x1022": "amd",
    "0x17cb": "qualcomm",
    "0x19e5": "huawei",
}
_NVIDIA_SMI = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
# Page size times pages, where /proc/meminfo is missing.
_SYSCONF = ("SC_PAGE_SIZE", "SC_PHYS_PAGES")


@dataclass(frozen=True)
class Accelerator:
    """A GPU or NPU.

    Args:
        kind: ``gpu`` or ``npu``.
        vendor: its maker, in lower case; ``unknown`` for others than the known ones.
        name: as the driver calls it.
        memory_bytes: its own memory; None where that is unknown.
        shares_memory: it uses the CPU's memory, so that a cap holds for both together.
    """

    kind: str
    vendor: str
    name: str
    memory_bytes: int | None = None
    shares_memory: bool = False


@dataclass(frozen=True)
class Machine:
    """The machine; None where something is not told here.

    Args:
        system: ``linux``, ``windows``, ``darwin`` or ``android``.
        architecture: ``x86_64`` or ``aarch64`` (also where the system says ``arm64``).
        board: the board's or computer's model.
        cpu: the processor's model.
        memory_bytes: installed memory.
        accelerators: in the kernel's order.
        battery: whether it has one.
    """

    system: str
    architecture: str
    board: str | None = None
    cpu: str | None = None
    memory_bytes: int | None = None
    accelerators: tuple[Accelerator, ...] = ()
    battery: bool = False

    @property
    def is_jetson(self) -> bool:
        """An NVIDIA Jetson, whose GPU shares the CPU's memory."""
        board = (self.board or "").lower()
        return "jetson" in board or "nvidia orin" in board

    def has_vendor(self, *vendors: str) -> bool:
        """Whether an accelerator of one of these makers is here."""
        return any(a.vendor in vendors for a in self.accelerators)


def run_command(command: tuple[str, ...]) -> str:
    """What a command prints; OSError or SubprocessError where it is missing, fails or hangs."""
    return subprocess.run(
        command, capture_output=True, text=True, timeout=5, check=True, errors="replace"
    ).stdout


def read_machine(
    *,
    root: Path = Path("/"),
    system: str | None = None,
    architecture: str | None = None,
    run: Callable[[tuple[str, ...]], str] = run_command,
) -> Machine:
    """Ask the kernel.

    Args:
        root: where /proc and /sys are.
        system: None asks Python, and so does ``architecture``.
        run: runs a command and gives what it printed, for nvidia-smi.
    """
    system = system or _system()
    architecture = (architecture or platform.machine()).lower()
    architecture = {"arm64": "aarch64", "amd64": "x86_64"}.get(architecture, architecture)
    board = _text(root / "proc/device-tree/model") or _text(root / "sys/class/dmi/id/product_name")
    machine = Machine(
        system,
        architecture,
        board=board,
        cpu=_cpu(root),
        memory_bytes=_memory(root),
        battery=any((root / "sys/class/power_supply").glob("BAT*")),
    )
    found = _nvidia(root, machine, run)
    found += _from_sysfs(root, "drm", "card", "gpu", skip=("nvidia",) if found else ())
    found += _from_sysfs(root, "accel", "accel", "npu")
    if system == "darwin" and architecture == "aarch64":
        found.append(Accelerator("gpu", "apple", "Apple GPU", shares_memory=True))
        found.append(Accelerator("npu", "apple", "Apple Neural Engine", shares_memory=True))
    return replace(machine, accelerators=tuple(found))


def _system() -> str:
    if hasattr(sys, "getandroidapilevel"):
        return "android"
    return {"win32": "windows"}.get(sys.platform, sys.platform)


def _cpu(root: Path) -> str | None:
    for line in (_text(root / "proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model") and value.strip():
            return value.strip()
    return platform.processor() or None if root == Path("/") else None


def _memory(root: Path) -> int | None:
    found = re.search(r"MemTotal:\s+(\d+) kB", _text(root / "proc/meminfo") or "")
    if found:
        return 1024 * int(found[1])
    if root == Path("/") and hasattr(os, "sysconf"):
        with suppress(ValueError, OSError):
            page, pages = (os.sysconf(name) for name in _SYSCONF)
            return page * pages
    return None


def _nvidia(
    root: Path, machine: Machine, run: Callable[[tuple[str, ...]], str]
) -> list[Accelerator]:
    if machine.is_jetson:
        # The driver of these boards reports no memory of the GPU's own: there is none.
        name = f"{machine.board} GPU"
        return [Accelerator("gpu", "nvidia", name, machine.memory_bytes, shares_memory=True)]
    told = sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))
    if not told and machine.system != "windows":
        return []
    with suppress(OSError, subprocess.SubprocessError):
        rows = [line.rpartition(",") for line in run(_NVIDIA_SMI).splitlines() if line.strip()]
        return [
            Accelerator(
                "gpu",
                "nvidia",
                name.strip(),
                int(mebibytes) << 20 if mebibytes.strip().isdigit() else None,
            )
            for name, _, mebibytes in rows
        ]
    found = []
    for file in told:
        model = re.search(r"^Model:\s*(.+)$", _text(file) or "", re.MULTILINE)
        found.append(Accelerator("gpu", "nvidia", model[1].strip() if model else "NVIDIA GPU"))
    return found


def _from_sysfs(
    root: Path, group: str, prefix: str, kind: str, *, skip: tuple[str, ...] = ()
) -> list[Accelerator]:
    found = []
    for folder in sorted((root / "sys/class" / group).glob(f"{prefix}[0-9]*")):
        number = _text(folder / "device/vendor")
        if number is None or "-" in folder.name:  # card0-HDMI-A-1 is a connector
            continue
        vendor = _VENDORS.get(number.lower(), "unknown")
        if vendor not in skip:
            device = _text(folder / "device/device") or "?"
            found.append(
                Accelerator(
                    kind, vendor, f"{vendor} {kind.upper()} {device}", shares_memory=kind == "npu"
                )
            )
    return found


def _text(path: Path) -> str | None:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.replace("\0", "").strip() or None
