"""Save a long prompt's keys and values once, and start warm with them: --prompt-cache of run, chat, batch.

A group of commands: `main` runs the one that the next word names. Knows their names alone.
"""

from __future__ import annotations

COMMANDS = {
    "save": "evaluate a prompt, and save it to a file, the store or a bundle",
    "list": "show the prompts in the store",
    "inspect": "show what a saved prompt belongs to, and check that it is whole",
    "rm": "take prompts out of the store, or a bundle's out of the bundle",
}
MODULES = {name: f"edge_runtime.cli.cache_{name}" for name in COMMANDS}
