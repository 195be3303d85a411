"""The socket that a server listens on.

Knows addresses and paths; knows no HTTP.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

from edge_runtime.errors import UsageError

_BACKLOG = 512


def tcp_socket(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one.

    Raises:
        UsageError: no such address, or it is in use.
    """
    if not 0 <= port <= 65535:  # the system would take it modulo 65536
        raise UsageError(f"port {port} is out of range", hint="use 1 to 65535")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as exc:
        raise UsageError(f"{host!r} is no address of this machine: {_said(exc)}") from exc
    family, kind, protocol, _, address = found[0]
    opened = socket.socket(family, kind, protocol)
    try:
        if os.name != "nt":  # there it would let two servers share the port
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(_BACKLOG)
    except OSError as exc:
        opened.close()
        raise UsageError(
            f"cannot listen on {host} port {port}: {_said(exc)}", hint="choose another --port"
        ) from exc
    return opened


def unix_socket(path: Path) -> socket.socket:
    """A listening Unix socket that its owner and group may use; one that is left over is replaced.

    Raises:
        UsageError: this system has none, the path cannot be one, or a server listens there.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise UsageError("this system has no Unix sockets", hint="use --host and --port")
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_left_over(path)
        # Nobody else may connect in the moment before its mode is set.
        before = os.umask(0o117)
        try:
            opened.bind(str(path))
        finally:
            os.umask(before)
        opened.listen(_BACKLOG)
    except (OSError, ValueError) as exc:
        opened.close()
        raise UsageError(f"cannot listen on {path}: {_said(exc)}") from exc
    except UsageError:
        opened.close()
        raise
    return opened


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def url_of(opened: socket.socket) -> str:
    """The base URL of a listening TCP socket."""
    host, port = opened.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _remove_left_over(path: Path) -> None:
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise UsageError(f"{path} is there and is no socket", hint="choose another path")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
                return
        raise UsageError(f"another server listens on {path}", hint="choose another path")


def _said(exc: Exception) -> str:
    return getattr(exc, "strerror", None) or str(exc)
