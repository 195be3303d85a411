"""Advice to the C library and the kernel that keeps a process small.

Everything here only returns memory that holds nothing, or clean pages that the kernel can read
again from their file. Linux with glibc; elsewhere each function does nothing. Knows no model.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

# Numbers of malloc.h and mman.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MADV_DONTNEED = 4
_RETURNED_AT_ONCE_BYTES = 256 * 1024


def keep_heap_small() -> None:
    """Have freed blocks of 256 KiB and more returned at once, and use one arena for all threads.

    glibc otherwise raises that size as blocks are freed, up to 32 MiB, and what a model load frees
    stays in the process. For a program's own start: a library would change its host.
    """
    libc = _glibc()
    if libc is not None:
        libc.mallopt(_M_MMAP_THRESHOLD, _RETURNED_AT_ONCE_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _RETURNED_AT_ONCE_BYTES)
        libc.mallopt(_M_ARENA_MAX, 1)


def trim_heap() -> None:
    """Return the heap's free pages to the kernel."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


# Held while a weights file is mapped or unmapped: an extent is only ours to advise about as long as
# nobody else can have been given its addresses.
_mapping = threading.Lock()


class MappedFiles:
    """The mappings of some files that come to be inside ``with mapped.opening():``.

    Args:
        files: the files.
    """

    def __init__(self, files: list[Path]) -> None:
        self._names = {str(file.resolve()) for file in files}
        self._extents: list[tuple[int, int]] = []

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Around what maps the files, and keeps them mapped until :meth:`closing`."""
        with _mapping:
            before = _unwritten_extents(self._names)
            yield
            self._extents = sorted(set(_unwritten_extents(self._names)) - set(before))

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Around what unmaps them."""
        with _mapping:
            self._extents = []
            yield

    @property
    def size_bytes(self) -> int:
        """Bytes that stay mapped, resident or not."""
        return sum(length for _, length in self._extents)

    def drop_pages(self) -> None:
        """Take the mappings' pages out of this process.

        What is read again comes back from the page cache. Most of a weights file never is:
        onnxruntime has rearranged its matrices, and their scales, into memory of its own. Of the
        embedding a step reads a few rows, and the kernel maps 64 KiB around each.
        """
        for start, length in self._extents:
            _glibc().madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), _MADV_DONTNEED)


def _unwritten_extents(names: set[str]) -> list[tuple[int, int]]:
    """Address and length of each mapping of a named file of which no page was written.

    A written page of a private mapping would lose what was written. Source: proc(5), smaps.
    """
    found: list[tuple[int, int]] = []
    extent: tuple[int, int] | None = None
    if _glibc() is None:
        return found
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
            fields = line.split(maxsplit=5)
            if not fields[0].endswith(":"):
                start, end = (int(address, 16) for address in fields[0].split("-"))
                extent = (start, end - start) if fields[5:] and fields[5] in names else None
            elif extent is not None and fields[:2] == ["Anonymous:", "0"]:
                found.append(extent)
    return found


@cache
def _glibc() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") and hasattr(libc, "mallopt") else None
