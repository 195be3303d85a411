"""How many prompt tokens may be read between two tokens of the streams that run.

From what steps have cost so far: one decode step of every stream, and one chunk, stay under the
bound on inter-token latency together. Where not even the smallest chunk does, the smallest is read
all the same: a bound that stops prompts from being read would only move the wait. Knows counts and
seconds alone.
"""

from __future__ import annotations

# Reading the weights once for fewer tokens than this wastes most of a step.
_SMALLEST_CHUNK = 8
# Chunk sizes are multiples of an eighth of the full one: each size that comes up costs the runner a
# binding, and it keeps a few.
_SIZES = 8
# As TCP smooths its round trips (RFC 6298, section 2): mean and mean deviation.
_MEAN_GAIN, _DEVIATION_GAIN, _DEVIATIONS = 1 / 8, 1 / 4, 2.0


class _Smoothed:
    """A smoothed cost, with some of its spread on top: a bound, not a mean, is to be kept."""

    def __init__(self) -> None:
        self._mean: float | None = None
        self._deviation = 0.0

    @property
    def expected(self) -> float | None:
        """What to reckon with; None before the first observation."""
        return None if self._mean is None else self._mean + _DEVIATIONS * self._deviation

    def observe(self, value: float) -> None:
        if self._mean is None:
            self._mean, self._deviation = value, value / 4
            return
        error = value - self._mean
        self._deviation += _DEVIATION_GAIN * (abs(error) - self._deviation)
        self._mean += _MEAN_GAIN * error


class ChunkPacer:
    """Chooses the size of chunks.

    Args:
        chunk_size: the full one, in tokens.
        max_inter_token_s: the bound; None reads full chunks always.
    """

    def __init__(self, chunk_size: int, max_inter_token_s: float | None) -> None:
        self._chunk_size = chunk_size
        self._bound_s = max_inter_token_s
        self._smallest = min(_SMALLEST_CHUNK, chunk_size)
        self._token_s = _Smoothed()
        self._decode_s = _Smoothed()

    def chunk_tokens(self, decode_steps: int) -> int:
        """Most tokens of the next chunk.

        Args:
            decode_steps: steps that it takes for every stream to get a token; 0 without streams.
        """
        if self._bound_s is None or not decode_steps:
            return self._chunk_size
        token_s, decode_s = self._token_s.expected, self._decode_s.expected
        if token_s is None:
            return self._smallest  # the first chunk ever tells
        left_s = self._bound_s - decode_steps * (decode_s or 0.0)
        tokens = int(max(0.0, left_s) / token_s)
        step = max(self._smallest, self._chunk_size // _SIZES)
        return max(self._smallest, min(self._chunk_size, tokens // step * step))

    def count_prefill(self, tokens: int, seconds: float) -> None:
        """Learn from a chunk of so many tokens, padding included."""
        # A token alone costs what reading the weights costs: it says nothing about a chunk's.
        if tokens >= self._smallest:
            self._token_s.observe(seconds / tokens)

    def count_decode(self, seconds: float) -> None:
        """Learn from a decode step."""
        self._decode_s.observe(seconds)
