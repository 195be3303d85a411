import os
import struct
import time
from pathlib import Path

import numpy as np
import pytest
from edge_export.sources import gguf as gguf_source
from edge_export.sources.gguf import open_gguf
from support.tiny_gguf import write_tiny_gguf

from edge_runtime.errors import (
    EdgeRuntimeError,
    ExportError,
    ModelNotFoundError,
    SourceFormatError,
    UnsupportedModelError,
)

U32, STRING, ARRAY = 4, 8, 9


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name="t", dimensions=(32,), kind=0, offset=0, count=None) -> bytes:
    head = text(name) + struct.pack("<I", len(dimensions) if count is None else count)
    return (
        head + struct.pack(f"<{len(dimensions)}Q", *dimensions) + struct.pack("<IQ", kind, offset)
    )


def gguf_bytes(*, pairs=(), tensors=(), data=b"", version=3, tensor_count=None, pair_count=None):
    header = b"GGUF" + struct.pack(
        "<IQQ",
        version,
        len(tensors) if tensor_count is None else tensor_count,
        len(pairs) if pair_count is None else pair_count,
    )
    header += b"".join(pairs) + b"".join(tensors)
    return header + bytes(-len(header) % 32) + data


FLOATS = np.arange(32, dtype="<f4").tobytes()


@pytest.fixture
def write(tmp_path: Path):
    def write_file(content: bytes) -> Path:
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        return path

    return write_file


@pytest.mark.parametrize(
    "kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"]
)
def test_tensors_have_the_values_that_were_written(tmp_path, kind):
    path = tmp_path / "tiny.gguf"
    held = write_tiny_gguf(path, kind=kind, biases=True, tied=False)
    with open_gguf(path) as checkpoint:
        assert checkpoint.format == "gguf"
        assert set(checkpoint.tensors) == set(held)
        for name, values in held.items():
            assert checkpoint.tensors[name].shape == values.shape
            assert np.array_equal(checkpoint.tensors[name].array(), values)
        assert checkpoint.tensors["blk.0.ffn_up.weight"].kind == kind


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "IQ2_S"])
def test_kinds_of_256_values_are_read(tmp_path, kind):
    path = tmp_path / "tiny.gguf"
    held = write_tiny_gguf(path, kind=kind, hidden=256, ffn=256, layers=1)
    with open_gguf(path) as checkpoint:
        for name, values in held.items():
            assert np.array_equal(checkpoint.tensors[name].array(), values)


def test_rows_are_those_asked_for_and_the_callers_own(tmp_path):
    path = tmp_path / "tiny.gguf"
    held = write_tiny_gguf(path)
    with open_gguf(path) as checkpoint:
        table = checkpoint.tensors["token_embd.weight"]
        rows = table.rows(3, 7)
        assert np.array_equal(rows, held["token_embd.weight"][3:7])
        assert rows.flags.writeable
        raw = table.raw_rows(3, 7)
        assert raw.shape == (4, table.size_bytes // table.row_count)
        assert not raw.flags.writeable
        assert table.rows(5, 5).shape == (0, 64)
        with pytest.raises(IndexError):
            table.raw_rows(0, table.row_count + 1)


def test_releasing_pages_keeps_views_readable(tmp_path):
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path)
    with open_gguf(path) as checkpoint:
        table = checkpoint.tensors["token_embd.weight"]
        raw = table.raw_rows(0, 4)
        before = raw.copy()
        table.release()
        assert np.array_equal(raw, before)


def test_closing_twice_and_under_a_live_view_is_harmless(tmp_path):
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path)
    checkpoint = open_gguf(path)
    raw = checkpoint.tensors["token_embd.weight"].raw_rows(0, 1)
    checkpoint.close()
    checkpoint.close()
    assert raw.shape[0] == 1


def test_metadata_comes_as_plain_values(tmp_path):
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(
        path,
        extra_metadata={
            "x.float": 0.5,
            "x.text": "日本語",
            "x.flag": True,
            "x.numbers": [1, -2],
            "x.flags": [True, False],
            "x.texts": ["a", ""],
        },
    )
    with open_gguf(path) as checkpoint:
        metadata = checkpoint.metadata
    assert metadata["general.architecture"] == "llama"
    assert metadata["llama.block_count"] == 2
    assert metadata["x.float"] == 0.5
    assert metadata["x.text"] == "日本語"
    assert metadata["x.flag"] is True
    assert metadata["x.texts"] == ["a", ""]
    assert metadata["x.numbers"].tolist() == [1, -2]
    assert metadata["x.flags"].tolist() == [True, False]


def test_a_large_vocabulary_is_read_quickly(write):
    count = 50_000
    words = b"".join(text(f"token{number}") for number in range(count))
    words = struct.pack("<IQ", STRING, count) + words
    path = write(gguf_bytes(pairs=[pair("tokens", ARRAY, words), pair("merges", ARRAY, words)]))
    started = time.process_time()
    with open_gguf(path) as checkpoint:
        assert checkpoint.metadata["merges"][-1] == "token49999"
    assert time.process_time() - started < 1.0


def test_alignment_is_the_files_own(write):
    pairs = [pair("general.alignment", U32, struct.pack("<I", 64))]
    content = gguf_bytes(pairs=pairs, tensors=[tensor(dimensions=(16, 2))])
    content += bytes(-len(content) % 64) + FLOATS
    with open_gguf(write(content)) as checkpoint:
        assert checkpoint.tensors["t"].array().tolist() == np.arange(32).reshape(2, 16).tolist()


def test_cutting_the_file_at_any_byte_is_reported(tmp_path):
    whole = tmp_path / "whole.gguf"
    write_tiny_gguf(whole, layers=1)
    content = whole.read_bytes()
    with open_gguf(whole) as checkpoint:
        data_bytes = max(t.offset + t.size_bytes for t in checkpoint.tensors.values())
    path = tmp_path / "cut.gguf"
    step = max(1, len(content) // 150)
    for length in [*range(64), *range(64, data_bytes, step), data_bytes - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(SourceFormatError) as caught:
            open_gguf(path)
        assert "\n" not in caught.value.message


def test_a_truncated_file_names_the_bytes_needed_and_present(write):
    with pytest.raises(SourceFormatError, match=r"needs 128 bytes of tensor data.*has 100"):
        open_gguf(write(gguf_bytes(tensors=[tensor()], data=FLOATS[:100])))


HOSTILE = {
    "tensors without end": (gguf_bytes(tensor_count=1 << 60), "needs .* bytes"),
    "metadata without end": (gguf_bytes(pair_count=(1 << 64) - 1), "needs .* bytes"),
    "key longer than the file": (
        gguf_bytes(pairs=[struct.pack("<Q", 1 << 62), bytes(8)], pair_count=1),
        "the key of metadata entry 0 needs 4611686018427387904 bytes",
    ),
    "string longer than the file": (
        gguf_bytes(pairs=[pair("k", STRING, struct.pack("<Q", 1 << 40))]),
        "the value of 'k' needs 1099511627776 bytes",
    ),
    "list longer than the file": (
        gguf_bytes(pairs=[pair("k", ARRAY, struct.pack("<IQ", U32, 1 << 61))]),
        "values of 'k' needs",
    ),
    "strings longer than the file": (
        gguf_bytes(pairs=[pair("k", ARRAY, struct.pack("<IQQ", STRING, 1, 1 << 50))]),
        "string 0 of the list 'k' needs",
    ),
    "string counts without end": (
        gguf_bytes(pairs=[pair("k", ARRAY, struct.pack("<IQ", STRING, 1 << 50))]),
        "strings of the list 'k' needs",
    ),
    "a value type of no meaning": (gguf_bytes(pairs=[pair("k", 99, b"")], data=FLOATS), "type 99"),
    "a key twice": (
        gguf_bytes(pairs=[pair("k", U32, bytes(4)), pair("k", U32, bytes(4))]),
        "'k' appears twice",
    ),
    "text that is not UTF-8": (
        gguf_bytes(pairs=[pair("k", STRING, struct.pack("<Q", 1) + b"\xff")]),
        "not UTF-8",
    ),
    "listed text that is not UTF-8": (
        gguf_bytes(pairs=[pair("k", ARRAY, struct.pack("<IQQ", STRING, 1, 1) + b"\xff")]),
        "string 0 of the list 'k' is not UTF-8",
    ),
    "a tensor twice": (gguf_bytes(tensors=[tensor(), tensor()], data=FLOATS), "'t' appears twice"),
    "too many dimensions": (gguf_bytes(tensors=[tensor(count=5)], data=FLOATS), "5 dimensions"),
    "no dimensions": (gguf_bytes(tensors=[tensor(count=0)], data=FLOATS), "0 dimensions"),
    "a dimension of zero": (gguf_bytes(tensors=[tensor(dimensions=(32, 0))]), "dimensions"),
    "dimensions whose product overflows": (
        gguf_bytes(tensors=[tensor(dimensions=(1 << 32, 1 << 32, 1 << 32))], data=FLOATS),
        "truncated",
    ),
    "rows that are no whole blocks": (
        gguf_bytes(tensors=[tensor(dimensions=(33,), kind=2)], data=FLOATS),
        "Q4_0 blocks of 32",
    ),
    "an offset past the end": (
        gguf_bytes(tensors=[tensor(offset=1 << 63)], data=FLOATS),
        "the file has 128",
    ),
    "an unaligned offset": (
        gguf_bytes(tensors=[tensor(offset=8)], data=FLOATS + bytes(32)),
        "not a multiple of 32",
    ),
    "an alignment of zero": (
        gguf_bytes(pairs=[pair("general.alignment", U32, bytes(4))]),
        "general.alignment is 0",
    ),
    "an alignment of text": (
        gguf_bytes(pairs=[pair("general.alignment", STRING, text("x"))]),
        "general.alignment is 'x'",
    ),
    "a text file": (b"Hello, I am not a model at all.", "it begins with b'Hell'"),
    "a pointer": (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
    "an empty file": (b"", "is empty"),
    "only the magic": (b"GGUF", "the file has 4"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_malformed_file_is_refused_quickly_and_plainly(write, name):
    content, message = HOSTILE[name]
    path = write(content)
    started = time.process_time()
    with pytest.raises(SourceFormatError, match=message):
        open_gguf(path)
    assert time.process_time() - started < 0.5


UNSUPPORTED = {
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "version 1": (gguf_bytes(version=1), "version 1"),
    "a later version": (gguf_bytes(version=4), "version 4"),
    "an unknown kind": (
        gguf_bytes(tensors=[tensor(kind=4000)], data=FLOATS),
        "'t'.*ggml type 4000",
    ),
    "a split model": (
        gguf_bytes(pairs=[pair("split.count", 2, struct.pack("<H", 3))]),
        "one of 3 files",
    ),
    "a list of lists": (
        gguf_bytes(pairs=[pair("k", ARRAY, struct.pack("<IQ", ARRAY, 0))]),
        "list of lists",
    ),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_a_well_formed_file_of_another_sort_is_refused_by_name(write, name):
    content, message = UNSUPPORTED[name]
    with pytest.raises(UnsupportedModelError, match=message):
        open_gguf(write(content))


def test_a_kind_without_a_decoder_names_the_tensor_and_the_kind(write):
    path = write(gguf_bytes(tensors=[tensor(kind=24)], data=FLOATS))
    with open_gguf(path) as checkpoint, pytest.raises(UnsupportedModelError, match=r"'t'.*I8"):
        checkpoint.tensors["t"].array()


def test_version_2_is_read(write):
    with open_gguf(write(gguf_bytes(version=2, tensors=[tensor()], data=FLOATS))) as checkpoint:
        assert checkpoint.tensors["t"].array().tolist() == list(range(32))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"absent\.gguf does not exist"):
        open_gguf(tmp_path / "absent.gguf")


def test_a_directory_is_refused(tmp_path):
    with pytest.raises(SourceFormatError, match="is a directory"):
        open_gguf(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused_without_waiting_for_it(tmp_path):
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    with pytest.raises(SourceFormatError, match="not a regular file"):
        open_gguf(pipe)


def test_without_the_gguf_package_the_extra_is_named(write, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gguf.constants", None)
    with pytest.raises(ExportError) as caught:
        open_gguf(write(gguf_bytes()))
    assert caught.value.hint == "pip install 'edge-runtime[export]'"


def test_random_damage_to_the_header_never_escapes_as_another_error(tmp_path):
    whole = tmp_path / "whole.gguf"
    write_tiny_gguf(whole, layers=1)
    content = bytearray(whole.read_bytes())
    rng = np.random.default_rng(0)
    path = tmp_path / "damaged.gguf"
    for _ in range(150):
        damaged = content.copy()
        for position in rng.integers(8, 12_000, 3):
            damaged[position] = rng.integers(0, 256)
        path.write_bytes(damaged)
        try:
            gguf_source.open_gguf(path).close()
        except EdgeRuntimeError:
            continue
