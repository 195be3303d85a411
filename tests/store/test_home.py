from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from edge_runtime.errors import StorageError
from edge_runtime.store.home import Home, make_folder, storage_error
from edge_runtime.store.progress import Event, Notice, format_bytes, silent


@pytest.mark.parametrize(
    "environment, platform, expected",
    [
        ({"EDGE_RUNTIME_HOME": "/data/models"}, "linux", "/data/models"),
        ({"EDGE_RUNTIME_HOME": "/data/models"}, "win32", "/data/models"),
        ({"XDG_DATA_HOME": "/x"}, "linux", "/x/edge-runtime"),
        ({"XDG_DATA_HOME": "relative"}, "linux", "~/.local/share/edge-runtime"),
        ({"EDGE_RUNTIME_HOME": ""}, "linux", "~/.local/share/edge-runtime"),
        ({}, "linux", "~/.local/share/edge-runtime"),
        ({}, "darwin", "~/Library/Application Support/edge-runtime"),
        ({"LOCALAPPDATA": "/local"}, "win32", "/local/edge-runtime"),
        ({}, "win32", "~/AppData/Local/edge-runtime"),
    ],
)
def test_the_store_is_where_the_platform_keeps_data(environment, platform, expected):
    assert Home.find(environment, platform=platform).root == Path(expected).expanduser()


def test_everything_lies_under_the_root(tmp_path: Path):
    home = Home(tmp_path)
    for place in (home.downloads, home.partial, home.bundles, home.hashes, home.hub_downloads):
        assert place.is_relative_to(tmp_path)


def test_a_store_that_cannot_be_made_is_a_storage_error_with_a_hint(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="cannot write") as caught:
        make_folder(tmp_path / "file" / "store")
    assert "EDGE_RUNTIME_HOME" in (caught.value.hint or "")


def test_a_full_disk_is_named_as_such(tmp_path: Path):
    error = storage_error(OSError(28, "No space left on device"), tmp_path)
    assert error.message == f"the disk is full: {tmp_path}"
    assert "free some space" in (error.hint or "")


def test_the_second_process_waits_for_the_first_and_says_so(tmp_path: Path):
    script = textwrap.dedent(
        """
        import sys, time
        from pathlib import Path
        from edge_runtime.store.home import Home
        from edge_runtime.store.progress import silent
        with Home(Path(sys.argv[1])).exclusive("thing", doing="thinking", report=silent):
            print("held", flush=True)
            sys.stdin.read()
        """
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with holder:
        assert holder.stdout is not None and holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        said: list[Event] = []

        def hear(event: Event) -> None:
            said.append(event)
            assert holder.poll() is None
            holder.stdin.close()  # the holder ends only once it was said that it is waited for

        with Home(tmp_path).exclusive("thing", doing="thinking", report=hear):
            pass
    assert said == [Notice("another process is thinking; waiting for it")]


def test_a_lock_is_free_again_after_an_error(tmp_path: Path):
    home = Home(tmp_path)
    with pytest.raises(ZeroDivisionError), home.exclusive("thing", doing="", report=silent):
        raise ZeroDivisionError

    def complain(event: Event) -> None:
        raise AssertionError(event)

    with home.exclusive("thing", doing="", report=complain):
        pass


@pytest.mark.parametrize(
    "count, text",
    [(0, "0 B"), (999, "999 B"), (98362432, "98.4 MB"), (999_960_000, "1.0 GB"), (3 * 10**12, "3.0 TB")],
)  # fmt: skip
def test_sizes_are_for_people(count: int, text: str):
    assert format_bytes(count) == text


def test_the_home_of_nobody_is_an_error_that_names_the_variable():
    with pytest.raises(StorageError, match="EDGE_RUNTIME_HOME is ~nobody-of-this-name/models"):
        Home.find({"EDGE_RUNTIME_HOME": "~nobody-of-this-name/models"})
