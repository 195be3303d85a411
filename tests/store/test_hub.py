"""The real huggingface_hub, in a process of its own, against a hub on this machine.

It reads its endpoint when it is imported, hence the process.
"""

from __future__ import annotations

import http.server
import json
import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("huggingface_hub")

CONTENT = bytes(range(256)) * 400
PIECE = 30_000
COMMIT = "b" * 40


class Hub(http.server.ThreadingHTTPServer):
    """Knows one repository, ``org/repo``, of one file; records the ranges that are asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.ranges: list[str] = []
        self.refuse_from_byte = len(CONTENT)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._send(200, b"")

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        size = {"size": len(CONTENT), "lfs": {"size": len(CONTENT), "pointerSize": 1}}
        if path.startswith("/api/models/org/repo/tree/"):
            size["lfs"]["oid"] = "f" * 64
            self._json([{"type": "file", "path": "a.gguf", "oid": "0" * 40} | size])
        elif path.startswith("/api/models/org/repo"):
            size["lfs"]["sha256"] = "f" * 64
            files = [{"rfilename": "README.md"}, {"rfilename": "a.gguf"} | size]
            tags = ["gguf", "license:mit"]
            self._json({"_id": "1", "id": "org/repo", "sha": COMMIT, "tags": tags} | {
                "siblings": files
            })  # fmt: skip
        elif path == f"/org/repo/resolve/{COMMIT}/a.gguf":
            self._send_range()
        else:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _send_range(self) -> None:
        asked = self.headers["Range"]
        self.server.ranges.append(asked)
        first, last = map(int, asked.removeprefix("bytes=").split("-"))
        if first >= self.server.refuse_from_byte:
            self._send(403, b"{}")
        else:
            self._send(206, CONTENT[first : last + 1])

    def _json(self, plain: Any) -> None:
        self._send(200, json.dumps(plain).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture
def server() -> Iterator[Hub]:
    with Hub() as hub:
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield hub
        hub.shutdown()
        thread.join()


def ask(url: str, statement: str) -> str:
    """What a fresh interpreter prints for a statement that uses ``hub``, or the error it meets."""
    script = textwrap.dedent(
        f"""
        import sys
        from pathlib import Path
        from edge_runtime.errors import EdgeRuntimeError
        from edge_runtime.store import hub
        hub._PIECE_BYTES = {PIECE}
        FILE = hub.HubFile("org/repo", "{COMMIT}", "a.gguf")
        try:
            {statement}
        except EdgeRuntimeError as exc:
            print(type(exc).__name__, exc.message, "|", exc.hint)
        """
    )
    environment = os.environ | {"HF_ENDPOINT": url, "NO_PROXY": "127.0.0.1", "HF_TOKEN": ""}
    result = subprocess.run(
        [sys.executable, "-c", script],
        env=environment, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return result.stdout.strip()


def test_a_repository_is_described_with_its_commit_licence_sizes_and_hashes(server: Hub):
    said = ask(server.url, "found = hub.describe('org/repo'); print(found.revision, found.license,"
               " [(f.file, f.size_bytes, f.sha256) for f in found.files])")  # fmt: skip
    expected = [("README.md", None, None), ("a.gguf", len(CONTENT), "f" * 64)]
    assert said == f"{COMMIT} mit {expected}"


def test_a_file_comes_whole_in_pieces(server: Hub, tmp_path: Path):
    part = tmp_path / "part"
    ask(server.url, f"hub.fetch(FILE, Path({str(part)!r}), lambda event: None)")
    assert part.read_bytes() == CONTENT
    assert server.ranges[:2] == ["bytes=0-29999", "bytes=30000-59999"]


def test_an_interrupted_download_goes_on_where_it_stopped(server: Hub, tmp_path: Path):
    part = tmp_path / "part"
    statement = f"hub.fetch(FILE, Path({str(part)!r}), lambda event: None)"
    server.refuse_from_byte = 2 * PIECE
    said = ask(server.url, statement)
    assert said.startswith("DownloadError org/repo/a.gguf: the download broke off")
    assert "goes on from where it stopped" in said
    assert part.read_bytes() == CONTENT[: 2 * PIECE]

    server.refuse_from_byte = len(CONTENT)
    server.ranges.clear()
    said = ask(server.url, statement.replace("lambda event: None", "print"))
    assert "going on after the 60.0 kB that came before" in said
    assert part.read_bytes() == CONTENT
    assert server.ranges[0] == "bytes=60000-89999", "what had come is not fetched again"


def test_more_bytes_than_the_file_has_are_no_beginning_of_it(server: Hub, tmp_path: Path):
    part = tmp_path / "part"
    part.write_bytes(b"x" * (len(CONTENT) + 1))
    ask(server.url, f"hub.fetch(FILE, Path({str(part)!r}), lambda event: None)")
    assert part.read_bytes() == CONTENT


def test_an_unknown_repository_is_said_to_be_so(server: Hub):
    said = ask(server.url, "hub.describe('org/other')")
    assert said.startswith("DownloadError org/other: the hub has no such repository")


def test_a_hub_that_refuses_connections_fails_quickly(tmp_path: Path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    started_s = time.monotonic()
    said = ask(f"http://127.0.0.1:{port}", "hub.describe('org/repo')")
    assert said.startswith("DownloadError the Hugging Face hub cannot be reached (")
    assert time.monotonic() - started_s < 10, "the library alone would try for 23 s"


def test_a_hub_that_never_answers_is_given_up():
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        said = ask(
            f"http://127.0.0.1:{deaf.getsockname()[1]}",
            "hub._REACH_TIMEOUT_S = 0.5; hub.describe('org/repo')",
        )
    assert said.startswith("DownloadError the Hugging Face hub")


def test_the_offline_switch_of_the_library_is_respected(
    server: Hub, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    said = ask(server.url, "hub.describe('org/repo')")
    assert "cannot be reached" in said and "offline" in said.lower()
