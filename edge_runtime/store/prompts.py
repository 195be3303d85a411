"""Saved prompts in the local store: where each is, by its name.

Goes by what it finds on the disk. Knows names and files; what is in a file, the engine's rooms know.
"""

from __future__ import annotations

import re
from pathlib import Path

from edge_runtime.errors import ModelNotFoundError, UsageError
from edge_runtime.near_names import near_names
from edge_runtime.part_files import sweep_folder
from edge_runtime.store.home import Home, storage_error

SUFFIX = ".kv"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,79}")


def prompt_file(home: Home, name: str) -> Path:
    """Where the prompt of a name is, or would be.

    Raises:
        UsageError: it is no name.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r:.100} is no name for a prompt",
            hint="use letters, digits, dots, dashes and underscores",
        )
    return home.prompts / f"{name}{SUFFIX}"


def find_prompt(home: Home, text: str) -> Path:
    """The file that a user means: one that exists wins over a name in the store.

    Raises:
        ModelNotFoundError: neither.
    """
    path = Path(text)
    if _exists(path):
        return path
    if _NAME.fullmatch(text) and _exists(stored := prompt_file(home, text)):
        return stored
    near = near_names(text, dict.fromkeys(p.stem for p in list_prompts(home)))
    raise ModelNotFoundError(
        f"no saved prompt is called {text!r}: not a file, not in the store",
        hint=f"did you mean {' or '.join(near)}?" if near else "see: edge-runtime cache list",
    )


def list_prompts(home: Home) -> list[Path]:
    """The files of all prompts in the store, by name."""
    try:
        return sorted(p for p in home.prompts.iterdir() if _is_prompt(p))
    except OSError:
        return []


def remove_prompt(home: Home, name: str) -> int:
    """Delete a prompt from the store; its size in bytes.

    Raises:
        ModelNotFoundError: the store has none of this name.
        StorageError: it cannot be deleted.
    """
    path = prompt_file(home, name)
    if not _exists(path):
        raise ModelNotFoundError(
            f"the store has no prompt {name!r}", hint="see: edge-runtime cache list"
        )
    try:
        size = path.stat().st_size
        path.unlink()
    except OSError as exc:
        raise storage_error(exc, path) from exc
    return size


def sweep_prompts(home: Home) -> list[Path]:
    """Delete what killed saves left in the store; the files."""
    return sweep_folder(home.prompts)


def _is_prompt(path: Path) -> bool:
    return path.suffix == SUFFIX and not path.name.startswith(".")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long for a path, or with a zero byte
        return False
