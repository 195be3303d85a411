from __future__ import annotations

import io
import sys

import pytest

from edge_runtime.cli import reporting
from edge_runtime.cli.reporting import Reporter
from edge_runtime.cli.tables import pairs, table
from edge_runtime.store.progress import Notice, Progress


def test_no_terminal_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys):
    now_s = [0.0]
    monkeypatch.setattr(reporting.time, "monotonic", lambda: now_s[0])
    with Reporter() as report:
        for second in range(12):
            now_s[0] = float(second)
            report(Progress("downloading", second * 1_000_000, 20_000_000))
    assert capsys.readouterr() == ("", (
        "downloading: 25% (5.0 MB of 20.0 MB)\ndownloading: 50% (10.0 MB of 20.0 MB)\n"
    ))  # fmt: skip


def test_an_unknown_total_is_not_made_up(monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(reporting, "_LINE_INTERVAL_S", 0.0)
    Reporter()(Progress("reading", 5000, 0))
    assert capsys.readouterr().err == "reading: 5.0 kB\n"


def test_a_terminal_gets_a_bar_that_makes_way_for_notices(monkeypatch: pytest.MonkeyPatch):
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with Reporter() as report:
        report(Progress("first [stage]", 1, 10))
        report(Progress("first [stage]", 10, 10))
        report(Progress("second", 3, 10))
        report(Notice("a line"))
    drawn = terminal.getvalue()
    assert "first [stage]" in drawn and "a line\n" in drawn
    assert drawn.rstrip().endswith("a line"), "no bar is left after the notice"


def test_a_bar_is_taken_away_when_the_work_fails(monkeypatch: pytest.MonkeyPatch):
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with pytest.raises(ZeroDivisionError), Reporter() as report:
        report(Progress("work", 1, 10))
        raise ZeroDivisionError
    assert terminal.getvalue().endswith(("\x1b[?25h", "\x1b[2K")), "the cursor is shown again"


def test_columns_are_aligned_and_never_cut():
    text = table(["NAME", "SIZE"], [["a", "1 B"], ["long" * 30, "1000 B"]], right="SIZE")
    first, second, third = text.splitlines()
    assert first.endswith("  SIZE") and second.endswith("   1 B") and third.endswith("  1000 B")
    assert len(first) == len(second) == len(third)


def test_control_characters_in_cells_are_made_visible():
    assert "\x1b" not in pairs([("name", "a\x1b[31m")])
    assert "\n" not in pairs([("name", "a\nb")])
