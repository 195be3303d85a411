"""``edge-runtime serve``: what it refuses before it starts, and a start and end of the real thing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

for needed in ("fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(needed, reason="needs the serve extra")

from edge_runtime.cli.main import main  # noqa: E402
from edge_runtime.server.models import ModelPool  # noqa: E402
from edge_runtime.server.settings import ServerSettings  # noqa: E402


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What would have been served."""
    found: list[dict[str, Any]] = []

    def serve(context: Any, listening: socket.socket, *, over_network: bool) -> None:
        listening.close()
        found.append({
            "pool": context.pool, "settings": context.settings, "over_network": over_network,
            "embedders": context.embedders,
        })  # fmt: skip

    monkeypatch.setattr("edge_runtime.server.serving.serve", serve)
    monkeypatch.delenv("EDGE_RUNTIME_API_KEY", raising=False)
    return found


def settings(started: list[dict[str, Any]]) -> ServerSettings:
    found: ServerSettings = started[0]["settings"]
    return found


def pool(started: list[dict[str, Any]]) -> ModelPool:
    found: ModelPool = started[0]["pool"]
    return found


def test_embedding_models_are_served_beside_and_share_no_name(
    started: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["serve", "writer", "--port", "0", "--embedding-model"]
    assert main([*asked, "vectors=some/folder"]) == 0
    (one,) = started[0]["embedders"].served
    assert (one.name, one.reference) == ("vectors", "some/folder")
    assert main([*asked, "writer"]) == 2
    assert "two models would be called writer" in capsys.readouterr().err


def test_models_are_called_as_named_and_paths_do_not_show(started: Any, tmp_path: Path) -> None:
    folder = tmp_path / "secret" / "my-bundle"
    folder.mkdir(parents=True)
    code = main(["serve", "smollm2-135m:int4", f"tiny={folder}", str(folder), "--port", "0"])
    assert code == 0
    assert pool(started).names == ("smollm2-135m:int4", "tiny", "my-bundle")
    assert [s.reference for s in pool(started).served][1:] == [str(folder), str(folder)]


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["a", "a"], "two models would be called a"),
        (["=x"], "NAME=MODEL"),
        (["a", "--host", "0.0.0.0"], "--allow-without-key"),
        (["a", "--host", "no.such.host.invalid", "--allow-without-key"], "no address of this"),
        (["a", "--port", "99999"], "port 99999"),
        (["a", "--keep-alive", "soon"], "'soon'"),
        (["a", "--slots", "0"], "--slots is 0"),
        (["a", "--max-queue", "-1"], "max_queue is -1"),
        (["a", "--max-body", "huge"], "'huge' is not a size"),
        (["a", "--memory-cap", "huge"], "'huge' is not a size"),
        (["a", "--request-timeout", "0"], "request_timeout_s is 0"),
        (["a", "--api-key-file", "/no/such/file"], "cannot be read"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_line(
    started: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert main(["serve", *arguments]) == 2
    assert says in capsys.readouterr().err and not started


def test_keys_come_from_file_and_environment(
    started: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\nalpha\n\n beta \n")
    monkeypatch.setenv("EDGE_RUNTIME_API_KEY", "gamma delta")
    # With keys another address is no risk.
    assert (
        main(["serve", "a", "--api-key-file", str(file), "--host", "0.0.0.0", "--port", "0"]) == 0
    )
    assert settings(started).api_keys == ("gamma", "delta", "alpha", "beta")


@pytest.mark.parametrize("content, says", [("# none\n", "holds no key"), ("é\n", "characters")])
def test_a_key_file_without_a_usable_key_is_refused(
    started: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, says: str
) -> None:
    file = tmp_path / "keys"
    file.write_text(content, encoding="utf-8")
    assert main(["serve", "a", "--api-key-file", str(file)]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, seconds",
    [
        (["a"], float("inf")),
        (["a", "b"], 300),
        (["a", "--keep-alive", "90s"], 90),
        (["a", "b", "--keep-alive", "-1"], float("inf")),
    ],
)
def test_one_model_stays_and_several_go_when_idle(
    started: Any, arguments: list[str], seconds: float
) -> None:
    assert main(["serve", *arguments, "--port", "0"]) == 0
    assert pool(started).keep_alive_s == seconds


def test_a_port_in_use_is_said(started: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", "a", "--port", str(taken.getsockname()[1])]) == 2
    assert "cannot listen on 127.0.0.1" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no Unix sockets here")
def test_a_unix_socket_is_its_owners_and_replaces_one_that_is_left(
    started: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s"
    for _ in range(2):
        assert main(["serve", "a", "--unix-socket", str(path)]) == 0
        assert path.stat().st_mode & 0o777 == 0o660
    assert started[0]["over_network"] is False
    path.unlink()
    path.write_text("mine")
    assert main(["serve", "a", "--unix-socket", str(path)]) == 2
    assert "is no socket" in capsys.readouterr().err and path.read_text() == "mine"


def test_without_the_extra_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [m for m in sys.modules if m.startswith("edge_runtime.server")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert main(["serve", "a"]) == 2
    assert "edge-runtime[serve]" in capsys.readouterr().err


def test_a_model_that_is_not_here_ends_the_program_with_its_error(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "edge_runtime", "serve", "no-such-model", "--port", "0"],
        capture_output=True, text=True, timeout=60, env=_environment(tmp_path),
    )  # fmt: skip
    assert done.returncode == 1
    assert "error: no model is called 'no-such-model'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="no such signal there")
def test_ctrl_c_ends_the_program_with_130(tmp_path: Path) -> None:
    # Finding the bundle takes for ever.
    program = (
        "import sys, time, edge_runtime.cli.serve as s; s.ensure_bundle = lambda *a, **k: "
        "time.sleep(60); from edge_runtime.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, "serve", "a", "--port", "0"],
        stderr=subprocess.PIPE, text=True, env=_environment(tmp_path),
    )  # fmt: skip
    assert process.stderr is not None
    timer = threading.Timer(60, process.kill)
    timer.start()
    try:
        assert "listening on http://127.0.0.1:" in process.stderr.readline()
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait() == 130 and "Traceback" not in said
    finally:
        timer.cancel()
        process.stderr.close()


def _environment(home: Path) -> dict[str, str]:
    return {**os.environ, "EDGE_RUNTIME_HOME": str(home)}
