from __future__ import annotations

import sys
from pathlib import Path

import pytest
from edge_tools.process import CommandError, first_byte_s, peak_memory

HAS_PROC = Path("/proc/self/status").exists()


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.mark.skipif(not HAS_PROC, reason="this system shows no process memory in /proc")
def test_the_peak_is_seen_even_if_it_was_given_back():
    code = "import time; b = bytearray(80 << 20); time.sleep(0.1); del b; time.sleep(0.05)"
    peak, _ = peak_memory(python(code), "")
    assert peak.rss_mb is not None
    assert peak.anonymous_mb is not None
    assert peak.rss_mb >= peak.anonymous_mb >= 80


def test_input_reaches_the_command_and_output_comes_back_whole():
    code = "import sys; t = sys.stdin.read(); print(t * 100_000, end='')"
    _, out = peak_memory(python(code), "é1")
    assert out == "é1" * 100_000


def test_a_failing_command_is_an_error_with_its_last_line():
    with pytest.raises(CommandError, match="exit code 3: oh dear"):
        peak_memory(python("import sys; print('oh dear', file=sys.stderr); sys.exit(3)"), "")
    with pytest.raises(CommandError, match="exit code 3"):
        first_byte_s(python("raise SystemExit(3)"))


def test_the_first_byte_is_waited_for_and_not_the_last():
    code = "import time; time.sleep(0.2); print('a', flush=True); time.sleep(0.6)"
    assert 0.2 <= first_byte_s(python(code)) < 0.75


def test_a_command_that_writes_nothing_has_no_first_byte():
    with pytest.raises(CommandError, match="wrote nothing"):
        first_byte_s(python("pass"))
