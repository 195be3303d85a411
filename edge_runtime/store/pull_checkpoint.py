"""Bring a Hugging Face model directory: the files that an export reads, and no others.

Each file is fetched beside its place and renamed into it, config.json last: by it a directory that
is whole is known. An interrupted pull goes on with the file where it stopped. Knows nothing of what
a model is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from edge_runtime.bundle import is_safe_relative_path
from edge_runtime.errors import UnsupportedModelError
from edge_runtime.store import hub
from edge_runtime.store.contents import CONFIG_NAME
from edge_runtime.store.home import Home, make_folder
from edge_runtime.store.progress import Notice, Report, format_bytes

# What a file of weights is called where several belong together; others are copies of the same
# weights in another form, or of other parts of a model.
_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?")
_OTHERS = {
    *("generation_config.json", "tokenizer.json", "tokenizer_config.json", "README.md"),
    *("chat_template.jinja", "chat_template.json"),
}
_PICKLE = re.compile(r"(pytorch_model.*\.bin|.*\.pt|.*\.pth|.*\.ckpt)")

Place = Callable[[hub.HubFile, Path, Path], None]
"""Fetches a file into a part file, checks it, and renames it into its place."""


def checkpoint_of(repository: hub.HubRepository) -> tuple[hub.HubFile, ...]:
    """The files to bring, config.json last; none where the repository has no such checkpoint.

    Raises:
        UnsupportedModelError: its weights are pickles.
    """
    # The names are the hub's word, and become paths here.
    by_name = {f.file: f for f in repository.files if is_safe_relative_path(f.file)}
    weights = [name for name in by_name if _WEIGHTS.fullmatch(name)]
    if CONFIG_NAME not in by_name:
        return ()
    if not weights:
        weights = [n for n in by_name if "/" not in n and n.endswith(".safetensors")]
        if len(weights) != 1:
            weights = []
    if not weights:
        pickle = next((name for name in by_name if _PICKLE.fullmatch(name)), None)
        if pickle is not None:
            raise UnsupportedModelError(
                f"{repository.repo}: {pickle} is a pickle, which can run code when it is read",
                hint="look for the model in safetensors or GGUF form",
            )
        return ()
    others = [name for name in by_name if name in _OTHERS]
    return tuple(by_name[name] for name in (*sorted(others), *sorted(weights), CONFIG_NAME))


def pull_checkpoint(
    repository: hub.HubRepository,
    files: tuple[hub.HubFile, ...],
    directory: Path,
    *,
    home: Home,
    report: Report,
    place: Place,
) -> None:
    """Bring a checkpoint's files into a directory.

    Args:
        repository: where they are.
        files: of :func:`checkpoint_of`.
        directory: where they go.
        home: the store.
        report: told what happens.
        place: fetches one file.
    """
    total = sum(file.size_bytes or 0 for file in files)
    terms = repository.license or "not stated: see the model's page"
    report(
        Notice(f"hf:{repository.repo}, {len(files)} files, {format_bytes(total)}, licence {terms}")
    )
    folder = make_folder(home.partial)
    for file in files:
        final = directory / file.file
        if final.is_file():  # of an earlier pull that broke off
            continue
        name = re.sub(r"\W+", "-", f"{file.repo}-{file.file}")[-150:]
        place(file, folder / f"{name}-{file.revision[:12]}.part", final)
