"""How models and bundles are called in the store: recipes, ``NAME:RECIPE``, and keys.

Pure functions of strings; touches no disk.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Literal, get_args

Recipe = Literal["auto", "int8", "int4", "int4-exact", "f32"]
RECIPES: tuple[Recipe, ...] = get_args(Recipe)
DEFAULT_RECIPE: Recipe = "auto"

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_STEM_CHARACTERS = 80


def split_recipe(model: str) -> tuple[str, Recipe | None]:
    """Take a trailing ``:RECIPE`` off a model's name; None where there is none."""
    name, _, last = model.rpartition(":")
    for recipe in RECIPES:
        if name and last == recipe:
            return name, recipe
    return model, None


def store_key(file: PurePath, sha256: str) -> str:
    """The name of a source's folder under ``bundles``.

    Its stem, for people, with what file systems dislike replaced; and the beginning of its hash,
    so that two files of one name do not meet.

    Args:
        file: the source; only its name counts.
        sha256: the hash of its content.
    """
    return _key(file.stem, sha256)


def directory_key(directory: PurePath, sha256: str) -> str:
    """As :func:`store_key`, of a directory, whose name has no suffix to leave out."""
    return _key(directory.name, sha256)


def _key(stem: str, sha256: str) -> str:
    stem = _UNSAFE.sub("-", stem)[:_MAX_STEM_CHARACTERS].strip(".-")
    return f"{stem or 'model'}-{sha256[:8]}"
