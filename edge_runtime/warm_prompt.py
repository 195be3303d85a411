"""The saved prompt that a bundle may carry: put in, replaced or taken out, and never half.

The new file gets a name of its own, then the manifest is replaced in one rename, then the old file
goes: a bundle that is read meanwhile, or after a kill, is whole. Knows the manifest and files; not
what is in the prompt's file, and no engine. Only one process may change a bundle at a time.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from edge_runtime.bundle import MANIFEST_NAME, Manifest, read_manifest
from edge_runtime.errors import StorageError
from edge_runtime.file_hash import sha256_of_file
from edge_runtime.part_files import part_file, sweep_folder, sync_folder

_PREFIX, _SUFFIX = "warm-prompt-", ".kv"


def set_warm_prompt(bundle: Path, write: Callable[[Path], object]) -> Manifest:
    """Have a bundle carry a prompt, in the place of one that it carries already.

    Args:
        bundle: its directory.
        write: makes the file at the path that it is given.

    Raises:
        ManifestError: it is no bundle.
        StorageError: it cannot be written.
        EdgeRuntimeError: what ``write`` raises; the bundle is as before.
    """
    read_manifest(bundle)  # refused now, not when the prompt is written
    sweep_folder(bundle)
    name = f"{_PREFIX}{secrets.token_hex(4)}{_SUFFIX}"
    file = bundle / name
    try:
        write(file)
        entry = {"size_bytes": file.stat().st_size, "sha256": sha256_of_file(file)}
        return _replace(bundle, name, entry)
    except BaseException as exc:
        with suppress(OSError):
            file.unlink(missing_ok=True)
        if isinstance(exc, OSError):
            raise _refused(bundle, exc) from exc
        raise


def drop_warm_prompt(bundle: Path) -> bool:
    """Take a bundle's prompt out; whether there was one.

    Raises:
        ManifestError: it is no bundle.
        StorageError: it cannot be written.
    """
    if read_manifest(bundle).warm_prompt is None:
        return False
    try:
        _replace(bundle, None, None)
    except OSError as exc:
        raise _refused(bundle, exc) from exc
    return True


def _replace(bundle: Path, name: str | None, entry: dict[str, object] | None) -> Manifest:
    path = bundle / MANIFEST_NAME
    # As plain data: what a newer writer has added stays.
    plain = json.loads(path.read_text(encoding="utf-8"))
    plain["files"].pop(plain.pop("warm_prompt", None), None)
    if name is not None:
        plain["warm_prompt"] = name
        plain["files"][name] = entry
    with part_file(path) as work:
        with work.open("w", encoding="utf-8", newline="\n") as stream:
            stream.write(json.dumps(plain, indent=2, ensure_ascii=False) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        work.chmod(path.stat().st_mode & 0o777)
        work.replace(path)
    sync_folder(bundle)
    for other in bundle.glob(f"{_PREFIX}*{_SUFFIX}"):
        if other.name != name:
            with suppress(OSError):
                other.unlink()
    return read_manifest(bundle)


def _refused(bundle: Path, exc: OSError) -> StorageError:
    return StorageError(f"{bundle} cannot be changed: {exc.strerror or exc}")
