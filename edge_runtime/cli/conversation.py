"""The state of a chat: its messages, and what an answer or its failure makes of them.

Knows no terminal and no engine.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

Message = dict[str, str]


@dataclass
class Conversation:
    """A system message, if any, and turns of user and assistant."""

    system: str | None = None
    turns: list[Message] = field(default_factory=list)

    @property
    def messages(self) -> list[Message]:
        """All messages, oldest first, as a chat template takes them."""
        head = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*head, *self.turns]

    def ask(self, text: str) -> None:
        """Add what the user said."""
        self.turns.append({"role": "user", "content": text})

    def answer(self, text: str) -> None:
        """Add what the model said. Nothing said takes the question back, so that turns alternate."""
        if text:
            self.turns.append({"role": "assistant", "content": text})
        else:
            self.take_back()

    def take_back(self) -> None:
        """Forget the question that has no answer."""
        if self.turns and self.turns[-1]["role"] == "user":
            self.turns.pop()

    def reset(self) -> None:
        """Forget the turns; the system message stays."""
        self.turns.clear()

    def save(self, path: Path, *, model: str) -> None:
        """Write the conversation as JSON to a new file.

        Raises:
            FileExistsError: there is a file already.
            OSError: it cannot be written.
        """
        plain = {"model": model, "messages": self.messages}
        with path.open("x", encoding="utf-8") as stream:
            json.dump(plain, stream, indent=2, ensure_ascii=False)
            stream.write("\n")
