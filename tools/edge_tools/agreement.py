"""Check that greedy answers follow llama.cpp on the same file, or part only where it is a near tie.

    python -m edge_tools.agreement MODEL --llama-python PATH [--quant int8] [--tokens 32] [--json]

Both read the same token ids. Where the answers part, the gap between the two candidates' logits
says whether it was a toss-up: for us, for llama.cpp, and for float32 compute of the file's weights
(:mod:`edge_tools.reference_llama`). Exit code 1 when an answer parts early and not on a near tie.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from edge_runtime.engine.engine import Engine, EngineOptions
from edge_runtime.generation.params import SamplingParams
from edge_tools.command import bundle_of, parser, run, say, source_of
from edge_tools.machine import this_machine
from edge_tools.peers.peer import LlamaCpp
from edge_tools.reference_llama import ReferenceLlama

PROMPTS = (
    "What is the capital of France?",
    "Explain in two sentences why the sky is blue.",
    "Write a short poem about a river in autumn.",
    "List three uses of a Raspberry Pi at home.",
    "Translate to French: The weather is nice today.",
)
REQUIRED_TOKENS = 24
# A quarter of a nat apart, the second choice has 0.78 times the first one's probability.
NEAR_TIE = 0.25
CONTEXT_LENGTH = 1024


@dataclass(frozen=True)
class Parting:
    """Where two answers part: after how many equal tokens, and each one's choice there.

    A gap is the logit of our choice less that of llama.cpp's choice.
    """

    after: int
    ours: str
    theirs: str
    our_gap: float
    their_gap: float
    reference_gap: float

    @property
    def near_tie(self) -> bool:
        """Whether someone who computes exactly finds the two about as likely."""
        return abs(self.reference_gap) <= NEAR_TIE


@dataclass(frozen=True)
class Agreement:
    """One prompt's outcome: tokens that are equal, and where the answers part, if they do."""

    prompt: str
    equal: int
    parting: Parting | None

    @property
    def holds(self) -> bool:
        """Equal for long enough, or parted on a near tie."""
        return (
            self.parting is None or self.parting.after >= REQUIRED_TOKENS or self.parting.near_tie
        )


def equal_tokens(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """How many tokens are equal from the start."""
    for number, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            return number
    return min(len(ours), len(theirs))


def until_end(token_ids: Sequence[int], end_token_ids: Collection[int]) -> list[int]:
    """The tokens up to the first end token, which is kept."""
    for number, token in enumerate(token_ids, 1):
        if token in end_token_ids:
            return list(token_ids[:number])
    return list(token_ids)


class Checker:
    """Compares the answers of one engine and one peer on one file."""

    def __init__(self, engine: Engine, peer: LlamaCpp, reference: ReferenceLlama) -> None:
        self._engine = engine
        self._peer = peer
        self._reference = reference

    def check(self, prompt: str, count: int) -> Agreement:
        """Compare greedy tokens: ``count`` of them, or up to the answer's end.

        What a model says after its end token is noise that no one reads.
        """
        ids = self._engine.encode_chat([{"role": "user", "content": prompt}])
        params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
        ends = self._engine.manifest.tokenizer.end_token_ids
        answer = [delta.token_id for delta in self._engine.generate_tokens(ids, params)]
        ours = until_end(answer, ends)
        theirs = until_end(self._peer.generate(ids, count).tokens, ends)
        same = equal_tokens(ours, theirs)
        if same == len(ours) == len(theirs):
            return Agreement(prompt, same, None)
        # Neither is a part of the other: an answer is cut only after its end token.
        return Agreement(
            prompt, same, self._parting([*ids, *ours[:same]], same, ours[same], theirs[same])
        )

    def _parting(self, ids: Sequence[int], after: int, a: int, b: int) -> Parting:
        last = None
        for logits in self._engine.score(ids):
            last = logits[-1]
        assert last is not None
        peer_a, peer_b = self._peer.next_logits(ids, [a, b])
        truth = self._reference.head(self._reference.hidden(ids)[-1:])[0]
        return Parting(
            after=after,
            ours=self._engine.tokenizer.decode([a]),
            theirs=self._engine.tokenizer.decode([b]),
            our_gap=float(last[a] - last[b]),
            their_gap=peer_a - peer_b,
            reference_gap=float(truth[a] - truth[b]),
        )


def main() -> None:
    """The command line."""
    made = parser("agreement", __doc__)
    made.add_argument("--source", type=Path, help="the .gguf file that llama.cpp runs")
    made.add_argument(
        "--llama-python", type=Path, required=True, help="an interpreter that has llama_cpp"
    )
    made.add_argument("--tokens", type=int, default=32, help="tokens of each answer to compare")
    asked = made.parse_args()
    source = asked.source or source_of(asked.model)
    bundle = bundle_of(asked)
    options = EngineOptions(context_length=CONTEXT_LENGTH, threads=asked.threads)
    threads = asked.threads or this_machine().usable_cpus
    with LlamaCpp(asked.llama_python) as peer, Engine.load(bundle, options) as engine:
        peer.load(source, threads=threads, context_length=CONTEXT_LENGTH)
        say(f"reading {source} into float32")
        checker = Checker(engine, peer, ReferenceLlama.open(source))
        results = [checker.check(prompt, asked.tokens) for prompt in PROMPTS]
    if asked.json:
        print(json.dumps([{**asdict(r), "holds": r.holds} for r in results], indent=2))
    else:
        for result in results:
            print(_line(result))
    if not all(result.holds for result in results):
        sys.exit(1)


def _line(result: Agreement) -> str:
    verdict = "ok  " if result.holds else "FAIL"
    parting = result.parting
    if parting is None:
        return f"{verdict} all {result.equal} tokens equal: {result.prompt}"
    return (
        f"{verdict} {parting.after} tokens equal: {result.prompt}\n"
        f"     then ours {parting.ours!r}, theirs {parting.theirs!r}; logit of ours less theirs: "
        f"here {parting.our_gap:+.3f}, llama.cpp {parting.their_gap:+.3f}, "
        f"float32 {parting.reference_gap:+.3f}"
    )


if __name__ == "__main__":
    run(main)
