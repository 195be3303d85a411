"""A prefix file is whole, right and what it says, or it is refused in one line."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_runtime.engine.prefix_file import PrefixFile, PrefixKey, write_prefix
from edge_runtime.errors import PrefixFileError, PrefixMismatchError, StorageError

KEY = PrefixKey(
    weights=("a" * 64,), graph="b" * 64, recipe="auto", cache_type="float32",
    layers=2, kv_heads=3, head_size=4, provider="CPU", onnxruntime="1.32", machine="x86_64",
)  # fmt: skip
IDS = tuple(range(100, 110))


def arrays(seed: int = 0) -> list[np.ndarray]:
    """As a slot of a cache has them: heads that lie apart."""
    whole = np.random.default_rng(seed).random((4, 3, 32, 4), np.float32)
    return [one[:, : len(IDS)] for one in whole]


def save(path: Path, seed: int = 0, **changes: Any) -> Path:
    key = dataclasses.replace(KEY, **changes)
    write_prefix(
        path, key=key, model="tiny", producer="test", token_ids=IDS, arrays=arrays(seed),
        system="Be brief.",
    )  # fmt: skip
    return path


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save(tmp_path / "x.kv")


def header_of(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    length = struct.unpack_from("<I", data, 8)[0]
    found = json.loads(data[16 : 16 + length])
    assert isinstance(found, dict)
    return found


def with_header(path: Path, text: bytes) -> None:
    """Put in another header, of the same length or not, with a checksum that is right."""
    data = path.read_bytes()
    length = struct.unpack_from("<I", data, 8)[0]
    lead = data[:8] + struct.pack("<II", len(text), zlib.crc32(text))
    path.write_bytes(lead + text + data[16 + length :])


def test_what_is_written_comes_back_bit_for_bit(saved: Path):
    file = PrefixFile.open(saved)
    assert (file.token_ids, file.header.key, file.header.system) == (IDS, KEY, "Be brief.")
    file.require(KEY)
    found = [np.zeros((3, 64, 4), np.float32) for _ in range(4)]
    file.read([one[:, : len(IDS)] for one in found])
    for ours, theirs in zip(found, arrays(), strict=True):
        assert (ours[:, : len(IDS)] == theirs).all()
        assert not ours[:, len(IDS) :].any(), "nothing past the tokens is touched"


def test_arrays_begin_on_pages(saved: Path):
    first = arrays()[0].tobytes()
    data = saved.read_bytes()
    assert data.index(first) % 4096 == 0
    assert data.index(np.array(IDS, "<i4").tobytes()) % 4096 == 0


@pytest.mark.parametrize(
    "field, value",
    [
        ("weights", ("c" * 64,)), ("graph", "c" * 64), ("recipe", "int4"), ("cache_type", "int8"),
        ("layers", 3), ("kv_heads", 4), ("head_size", 8), ("provider", "CUDA"),
        ("onnxruntime", "1.33"), ("machine", "aarch64"),
    ],
)  # fmt: skip
def test_another_models_file_is_refused_and_the_line_says_what_differs(
    saved: Path, field: str, value: Any
):
    with pytest.raises(PrefixMismatchError, match=f"another {field}: ") as caught:
        PrefixFile.open(saved).require(dataclasses.replace(KEY, **{field: value}))
    assert caught.value.differing == (field,)


def test_any_changed_byte_is_found(saved: Path):
    whole = saved.read_bytes()
    # Padding alone means nothing.
    meaningful = [n for n, byte in enumerate(whole) if byte]
    for position in random.Random(0).sample(meaningful, 150):
        changed = bytearray(whole)
        changed[position] ^= 0x40
        saved.write_bytes(changed)
        with pytest.raises(PrefixFileError):
            PrefixFile.open(saved).verify()


def test_a_file_of_any_other_length_is_refused(saved: Path):
    whole = saved.read_bytes()
    for size in (0, 1, 8, 15, 16, 40, 300, 4096, len(whole) // 2, len(whole) - 1):
        saved.write_bytes(whole[:size])
        with pytest.raises(PrefixFileError):
            PrefixFile.open(saved)
    saved.write_bytes(whole + b"\0")
    with pytest.raises(PrefixFileError, match="bytes, and should have"):
        PrefixFile.open(saved)


@pytest.mark.parametrize(
    "name, value",
    [
        ("tokens", 0), ("tokens", -5), ("tokens", 10**30), ("tokens", "9"), ("tokens", True),
        ("checksums", []), ("checksums", [1] * 1000), ("schema_version", 2), ("key", {}),
        ("key.layers", -1), ("key.layers", 10**9), ("key.kv_heads", 2**24), ("key.head_size", 0),
        ("key.cache_type", "object"), ("key.cache_type", "float64"),
    ],
)  # fmt: skip
def test_a_hostile_header_is_refused_before_anything_is_made_of_it(
    saved: Path, name: str, value: Any
):
    header = header_of(saved)
    place = header["key"] if name.startswith("key.") else header
    place[name.removeprefix("key.")] = value
    with_header(saved, json.dumps(header).encode())
    with pytest.raises(PrefixFileError) as caught:
        PrefixFile.open(saved)
    assert len(caught.value.message.splitlines()) == 1
    assert len(caught.value.message) < 500


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 200_000,
        b"{}",
        b"null",
        b'{"a": ' + b"9" * 10_000 + b"}",
        b"\xff\xfe",
        b"",
        b"x" * 900,
    ],
)
def test_a_header_that_is_no_header_is_refused(saved: Path, text: bytes):
    with_header(saved, text)
    with pytest.raises(PrefixFileError):
        PrefixFile.open(saved)


def test_a_header_that_claims_to_be_huge_is_refused(saved: Path):
    data = bytearray(saved.read_bytes())
    struct.pack_into("<I", data, 8, 0xFFFFFFFF)
    saved.write_bytes(data)
    with pytest.raises(PrefixFileError, match="longer than any"):
        PrefixFile.open(saved)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_pipes_folders_and_what_is_not_there_are_refused_at_once(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "none", tmp_path / "circle"):
        with pytest.raises(PrefixFileError):
            PrefixFile.open(path)
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(PrefixFileError, match="will not be replaced"):
            save(path)


def test_only_a_saved_prompt_is_replaced(tmp_path: Path):
    mine = tmp_path / "notes.txt"
    mine.write_text("mine")
    with pytest.raises(PrefixFileError, match="not a saved prompt"):
        save(mine)
    link = tmp_path / "link.kv"
    link.symlink_to(mine)
    with pytest.raises(PrefixFileError):
        save(link)
    assert mine.read_text() == "mine"
    save(save(tmp_path / "x.kv"), seed=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.kv", "notes.txt", "x.kv"]


def test_a_folder_that_is_not_there_is_one_error(tmp_path: Path):
    with pytest.raises(StorageError, match="cannot be written"):
        save(tmp_path / "no" / "x.kv")


SAVE_FOR_EVER = """
import sys
from pathlib import Path
from test_prefix_file import save
path = Path(sys.argv[1])
print("saving", flush=True)
for seed in range(10**9):
    save(path, seed=seed % 2)
"""


@pytest.mark.skipif(os.name == "nt", reason="kill is another thing there")
def test_a_kill_at_any_moment_leaves_a_whole_file_or_none_and_what_is_left_is_swept(tmp_path: Path):
    chance = random.Random(1)
    here = str(Path(__file__).parent)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([here, *sys.path])}
    path = tmp_path / "x.kv"
    for round_number in range(5):
        program = subprocess.Popen(
            [sys.executable, "-c", SAVE_FOR_EVER, str(path)],
            env=environment, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert program.stdout is not None
        assert program.stdout.readline() == b"saving\n"
        time.sleep(chance.random() * 0.05)
        program.send_signal(signal.SIGKILL)
        program.communicate()
        if path.exists():
            PrefixFile.open(path).verify()
        save(tmp_path / "x.kv", seed=round_number)
        assert [p.name for p in tmp_path.iterdir()] == ["x.kv"]
