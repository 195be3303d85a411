from __future__ import annotations

import subprocess
import sys

INTERRUPTED_WHILE_IMPORTING = """
import sys

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == "edge_runtime.cli.main":
            raise KeyboardInterrupt

sys.meta_path.insert(0, CtrlC())
from edge_runtime.cli.entry import run_program
run_program()
"""
WHAT_IT_LOADS = """
import sys
before = set(sys.modules)
import edge_runtime.cli.entry
print(*sorted(set(sys.modules) - before))
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)


def test_ctrl_c_while_the_program_is_still_importing_leaves_no_traceback():
    result = run(INTERRUPTED_WHILE_IMPORTING)
    assert (result.returncode, result.stderr) == (130, "")


def test_nothing_is_imported_before_ctrl_c_is_taken():
    loaded = set(run(WHAT_IT_LOADS).stdout.split()) - {"__future__"}
    own = {"edge_runtime", "edge_runtime._version", "edge_runtime.cli", "edge_runtime.cli.entry"}
    assert loaded == own
