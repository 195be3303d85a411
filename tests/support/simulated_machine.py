"""Machines that are not here: a folder with the /proc and /sys that the facts are read from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from edge_runtime.providers.catalog import Package
from edge_runtime.providers.facts import Facts
from edge_runtime.providers.plugins import PluginLibrary

JETSON = "NVIDIA Jetson Orin Nano Developer Kit"


def simulated(
    root: Path,
    *,
    board: str = "",
    architecture: str = "x86_64",
    system: str = "linux",
    pci: Mapping[str, str] | None = None,
    nvidia: bool = False,
    battery: bool = False,
    memory_bytes: int = 8 << 30,
    libraries: Iterable[str] = (),
    plugins: Mapping[str, Path] | None = None,
    run: Callable[[tuple[str, ...]], str] | None = None,
) -> Facts:
    """The facts of a machine.

    Args:
        root: an empty folder for its files.
        board: what the device tree says.
        architecture, system: as Python would say.
        pci: folder under /sys/class -> the vendor's number.
        nvidia: whether the NVIDIA driver shows a GPU.
        battery: whether there is one.
        memory_bytes: installed.
        libraries: shared libraries that load.
        plugins: module of a plugin package -> its library.
        run: what commands print; by default none is there.
    """
    files = {"proc/meminfo": f"MemTotal:       {memory_bytes >> 10} kB\n"}
    if board:
        files["proc/device-tree/model"] = board + "\0"
    for folder, vendor in (pci or {}).items():
        files[f"sys/class/{folder}/device/vendor"] = vendor + "\n"
    if nvidia:
        files["proc/driver/nvidia/gpus/0000:01:00.0/information"] = "Model: \t NVIDIA RTX 4060\n"
    if battery:
        files["sys/class/power_supply/BAT0/type"] = "Battery\n"
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    loadable = set(libraries)

    def load_library(name: str) -> None:
        if name not in loadable:
            raise OSError(f"{name}: cannot open shared object file")

    def find_plugin(package: Package) -> PluginLibrary | None:
        path = (plugins or {}).get(package.module)
        return None if path is None else PluginLibrary("1.0", path)

    def no_command(command: tuple[str, ...]) -> str:
        raise FileNotFoundError(command[0])

    return Facts(
        root=root,
        system=system,
        architecture=architecture,
        run=run or no_command,
        find_plugin=find_plugin,
        load_library=load_library,
    )
