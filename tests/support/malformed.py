"""Requests that are wrong in every way that a network and a client can be wrong in.

As a program, against a server that runs: ``python malformed.py HOST PORT COUNT [KEY=VALUE]``.
"""

from __future__ import annotations

import json
import random
import socket
import struct
import sys
import time
from collections import Counter

PATHS = (
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/api/chat", "/api/generate",
    "/api/show", "/api/embed", "/tokenize", "/detokenize", "/apply-template", "/props", "/health",
    "/v1/models/..%2f..", "/metrics", "/nowhere", "/%00", "/v1/models/%ff", "*", "//x",
)  # fmt: skip
METHODS = ("GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS", "PATCH", "TRACE", "FOO", "P\x00ST")
FIELDS = (
    "model", "messages", "prompt", "stream", "stream_options", "max_tokens", "temperature", "top_p",
    "n", "stop", "seed", "logit_bias", "logprobs", "top_logprobs", "tools", "tool_choice",
    "response_format", "options", "keep_alive", "format", "content", "tokens", "input", "think",
    "chat_template_kwargs", "x" * 5000,
)  # fmt: skip
VALUES = (
    None, True, False, 0, -1, 2**63, 10**40, -0.0, 1e308, "", "x", "\ud800", "\x00", "é" * 100, [],
    [[]], [None], {}, {"a": {}}, {"type": "json_object"}, [{"role": "user"}], [{"role": 5}],
    [{"role": "user", "content": [{"type": "image_url"}]}], {"include_usage": 3}, {"1": "x"},
)  # fmt: skip


def json_body(rng: random.Random) -> bytes:
    """A JSON object of right names and wrong values; cut, or spoilt, now and then."""
    fields = {name: rng.choice(VALUES) for name in rng.sample(FIELDS, rng.randint(0, 6))}
    raw = json.dumps(fields).encode()
    return rng.choice((
        raw, raw, raw, raw[: rng.randint(0, len(raw))], raw + b"}", raw.replace(b'"', b"'"),
        raw.decode().encode("utf-16"), b"\xef\xbb\xbf" + raw, b"[" * rng.randint(1, 60_000),
        b'{"a":' * rng.randint(1, 20_000), b'{"n":NaN}', b"1" * 6000, rng.randbytes(200), b"",
    ))  # fmt: skip


def http_request(rng: random.Random) -> bytes:
    """A request whose head or body is wrong."""
    body = json_body(rng)
    method = rng.choice(METHODS) if rng.random() < 0.3 else "POST"
    head = f"{method} {rng.choice(PATHS)} {rng.choice(['HTTP/1.1'] * 8 + ['HTTP/9', 'HTTP/1.0'])}"
    length = rng.choice([len(body)] * 8 + [len(body) + 9, 0, -1, 10**30])
    lines = [head, f"Host: {rng.choice(['localhost'] * 8 + ['evil.example', '', '[', 'x' * 300])}"]
    lines += rng.choice(([f"Content-Length: {length}"],) * 6 + (
        [], ["Transfer-Encoding: chunked"], ["Content-Length: x"], ["Content-Length: 1"] * 2,
        [f"X-Long: {'y' * 70_000}"], ["X-Bad: \x01\x00"], ["No colon"], ["Expect: 100-continue"],
        ["Origin: https://evil.example"], [f"Authorization: Bearer {'k' * 9000}"], ["Upgrade: h2c"],
        ["Connection: Upgrade", "Upgrade: websocket"], [f"X-{i}: 1" for i in range(200)],
    ))  # fmt: skip
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def send(address: tuple[str, int], rng: random.Random) -> str:
    """Send one, in one of the ways in which senders misbehave; gives what came back, in a word."""
    data = http_request(rng) if rng.random() < 0.95 else rng.randbytes(rng.randint(0, 2000))
    way = rng.random()
    try:
        with socket.create_connection(address, timeout=10) as opened:
            if way < 0.1:  # left in the middle
                opened.sendall(data[: rng.randint(0, len(data))])
                return "left"
            if way < 0.15:  # reset
                opened.sendall(data)
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return "reset"
            if way < 0.25:  # half closed
                opened.sendall(data[: rng.randint(0, len(data))])
                opened.shutdown(socket.SHUT_WR)
            elif way < 0.3:  # in small pieces
                for i in range(0, min(len(data), 60), 7):
                    opened.sendall(data[i : i + 7])
                    time.sleep(0.001)
                return "slow"
            else:
                opened.sendall(data)
            opened.settimeout(0.5)
            answer = opened.recv(4096)
    except TimeoutError:
        return "waits for more"
    except OSError:
        return "closed"
    words = answer.split(b" ", 2)
    return words[1].decode("latin-1") if len(words) > 2 else "closed"


def main() -> None:
    """Send many, and say what came back."""
    host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(int(sys.argv[4]) if len(sys.argv) > 4 else 1)
    print(sorted(Counter(send((host, port), rng) for _ in range(count)).items()))


if __name__ == "__main__":
    main()
