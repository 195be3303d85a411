"""Cut a stream of text at the first stop string, wherever the pieces happen to be divided.

Text that may still become part of a stop string is held back, and released once it cannot. Knows
no token and no model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from edge_runtime.errors import InvalidParameterError


@dataclass
class _Node:
    """A prefix of stop strings (Aho and Corasick 1975)."""

    depth: int
    children: dict[str, _Node] = field(default_factory=dict)
    suffix: _Node | None = None  # the longest proper suffix that is also a prefix; None at the root
    match: str | None = None  # the longest stop string that ends here


class StopStringMatcher:
    """Finds the stop string that begins first; of those that begin together, the longest.

    The result is that of searching the whole text, however it is divided. Work and held text
    depend on the stop strings alone, not on the length of the answer.

    Args:
        stop: the stop strings; none lets every text through.

    Raises:
        InvalidParameterError: an empty stop string.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        if "" in stop:
            raise InvalidParameterError(
                "a stop string is empty", hint="leave it out to generate without it"
            )
        self._root = _build(stop)
        self._node = self._root
        self._held = ""
        # The best match so far and where it begins in the held text, while an earlier or a longer
        # one is still possible.
        self._candidate: tuple[int, str] | None = None
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """The text that is surely before any stop string; "" once one has matched.

        After a match (``matched`` names it) whatever follows is discarded.
        """
        if self.matched is not None:
            return ""
        if not self._root.children:
            return text
        position = len(self._held)
        self._held += text
        for character in text:
            position += 1
            self._advance(character, position)
            if self._is_decided(position):
                return self.flush()
        keep_from = position - self._node.depth
        if self._candidate is not None:
            keep_from = min(keep_from, self._candidate[0])
            self._candidate = (self._candidate[0] - keep_from, self._candidate[1])
        released, self._held = self._held[:keep_from], self._held[keep_from:]
        return released

    def flush(self) -> str:
        """The text held back when no more will come, less a stop string in it."""
        held, self._held = self._held, ""
        self._node = self._root
        if self._candidate is None:
            return held
        start, self.matched = self._candidate
        self._candidate = None
        return held[:start]

    def _advance(self, character: str, position: int) -> None:
        node: _Node | None = self._node
        while node is not None and character not in node.children:
            node = node.suffix
        self._node = self._root if node is None else node.children[character]
        match = self._node.match
        if match is None:
            return
        start = position - len(match)
        # Of the same beginning, the later end is the longer string.
        if self._candidate is None or start <= self._candidate[0]:
            self._candidate = (start, match)

    def _is_decided(self, position: int) -> bool:
        """Whether nothing that begins earlier, or there and is longer, can still match."""
        if self._candidate is None:
            return False
        alive_from = position - self._node.depth
        start = self._candidate[0]
        return alive_from > start or (alive_from == start and not self._node.children)


def _build(stop: Sequence[str]) -> _Node:
    root = _Node(depth=0)
    for string in stop:
        node = root
        for character in string:
            node = node.children.setdefault(character, _Node(depth=node.depth + 1))
        node.match = string
    queue = deque([root])
    while queue:  # breadth first: a suffix is shorter, so it is finished before it is needed
        parent = queue.popleft()
        for character, node in parent.children.items():
            suffix = parent.suffix
            while suffix is not None and character not in suffix.children:
                suffix = suffix.suffix
            node.suffix = root if suffix is None else suffix.children[character]
            if node.match is None:
                node.match = node.suffix.match
            queue.append(node)
    return root
