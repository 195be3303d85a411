"""Where the facts about this machine come from, in one value that a test can replace.

Knows how to ask: the kernel, the loader, the installed packages. Judges nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edge_runtime.providers.catalog import Package, Provider
from edge_runtime.providers.machine import Machine, read_machine, run_command
from edge_runtime.providers.plugins import PluginLibrary, find_plugin


@dataclass(frozen=True)
class Facts:
    """How to ask; the defaults ask the real machine.

    Args:
        root: where /proc, /sys and /dev are.
        system: None asks Python; so does ``architecture``.
        run: runs a command and gives what it printed.
        find_plugin: the library of an installed plugin package, or None.
        load_library: loads a shared library; raises OSError where it is missing.
    """

    root: Path = Path("/")
    system: str | None = None
    architecture: str | None = None
    run: Callable[[tuple[str, ...]], str] = run_command
    find_plugin: Callable[[Package], PluginLibrary | None] = find_plugin
    load_library: Callable[[str], object] = ctypes.CDLL

    def machine(self) -> Machine:
        """The machine, read anew."""
        return read_machine(
            root=self.root, system=self.system, architecture=self.architecture, run=self.run
        )

    def missing_libraries(self, provider: Provider) -> tuple[str, ...]:
        """Of what a provider loads from the system, what does not load; Linux names only."""
        if self.machine().system != "linux":
            return ()
        return tuple(
            names.replace("|", " or ")
            for names in provider.libraries
            if not any(self._loads(name) for name in names.split("|"))
        )

    def _loads(self, name: str) -> bool:
        try:
            self.load_library(name)
        except OSError:
            return False
        return True
