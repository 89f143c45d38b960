"""A request and its texts while the engine computes them. Plain state; `scheduler` and `engine` decide."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from .params import NO_LOGPROBS, Params

if TYPE_CHECKING:
    from .beam_search import BeamSearch
    from .grammar import Matcher
    from .logits import LogitArrays, TokenCounts
    from .thinking import ThinkingState

GUESSES = 4
"""Wrong guesses by a grammar, more than right ones, after which a text is no longer guessed ahead."""
State = Literal["waiting", "prefill", "decode", "over"]
Status = Literal["running", "finished", "lost", "failed", "refused", "cancelled"]


@dataclass(slots=True)
class TokenLogprobs:
    """Of one token, from the model's own logits: its log probability, its rank (1: the likeliest), the likeliest."""

    logprob: float
    rank: int
    top: list[tuple[int, float]]


class Output:
    """New tokens of one text: pipeline.DetailedOutput."""

    __slots__ = ("details", "generated_ids", "generated_log_probs", "prompt_details", "score")

    def __init__(
        self,
        ids: list[int],
        logprobs: list[float],
        score: float = 0.0,
        details: list[TokenLogprobs] | None = None,
        prompt_details: list[TokenLogprobs] | None = None,
    ) -> None:
        self.generated_ids = ids
        self.generated_log_probs = logprobs
        self.score = score
        self.details = details if details is not None else []
        self.prompt_details = prompt_details if prompt_details is not None else []


class Request:
    """One request: pipeline.Handle. The outputs of several steps are read at once.

    computed: prompt tokens in the KV cache, while the prompt is computed. cached: those that were found in the prefix
    cache. prompt_details: for each prompt token but the first.
    """

    __slots__ = (
        "_cancelled",
        "arrays",
        "arrival",
        "cached",
        "computed",
        "error",
        "final",
        "params",
        "prompt_details",
        "ready",
        "search",
        "sequences",
        "status",
    )

    def __init__(self, params: Params, arrival: int, cancelled: list[Request]) -> None:
        """cancelled: the list that a cancelled request is appended to."""
        self.params = params
        self.arrays: LogitArrays | None = None
        self.arrival = arrival
        self.sequences: list[Sequence] = []
        self.status: Status = "running"
        self.ready = False
        self.cached = -1
        self.computed = 0
        self.error = ""
        self.prompt_details: list[TokenLogprobs] = []
        self.search: BeamSearch | None = None
        self.final: list[Output] = []  # of a beam search that is over, best first
        self._cancelled = cancelled

    def can_read(self) -> bool:
        return self.ready

    def read(self) -> Mapping[int, Output]:
        """What is new, by the number of the text; {} when the request is lost or has failed. Raises RuntimeError."""
        if not self.ready:
            raise RuntimeError("there is no output to read")
        self.ready = False
        if self.final:
            final, self.final = self.final, []
            return dict(enumerate(final))
        return {s.index: s.taken() for s in self.sequences if s.new_ids}

    def cancel(self) -> None:
        if self.status == "running":
            self._cancelled.append(self)
        self.status = "cancelled"
        self.ready = False

    def end(self, status: Status) -> None:
        """Finished, lost, failed or refused."""
        if self.status == "running":
            self.status = status
            self.ready = self.ready or status != "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """One text. ids: prompt and generated tokens; all but the newest are in the KV cache when it decodes.

    prompt: tokens of the request's prompt. counted: where the tokens begin that count as generated (a request that is
    taken up again brings some in its prompt). row: its place in the tables of running sequences, -1 if it does not run.
    blocks: its KV blocks in order; chain: the serial numbers of those that are in the prefix cache.
    guess: tokens that the running step computes for, behind ids. ahead: its grammar guesses them. credit: 0 when too
    many of the grammar's were wrong. preempted: it has given its blocks back once.
    echo: the first output starts with the prompt, that of beams has its log probabilities.
    score, logprobs: of a beam, cumulative and token by token.
    """

    request: Request
    index: int
    ids: array[int]
    prompt: int
    counted: int
    limit: int
    seed: int
    stops: frozenset[int]
    state: State = "waiting"
    row: int = -1
    blocks: list[int] = field(default_factory=list)
    chain: list[int] = field(default_factory=list)
    matcher: Matcher | None = None
    counts: TokenCounts | None = None
    thinking: ThinkingState | None = None
    guess: list[int] = field(default_factory=list)
    ahead: bool = False
    credit: int = GUESSES
    preempted: bool = False
    score: float = 0.0
    echo: bool = False
    logprobs: list[float] = field(default_factory=list)
    new_ids: list[int] = field(default_factory=list)
    new_details: list[TokenLogprobs] = field(default_factory=list)

    @property
    def params(self) -> Params:
        return self.request.params

    @property
    def generated(self) -> int:
        """Tokens that count as generated."""
        return len(self.ids) - self.counted

    @property
    def needs_prompt_logprobs(self) -> bool:
        """Log probabilities of its prompt are asked for, and not all are there: all of it has to be computed."""
        request = self.request
        return request.params.prompt_logprobs != NO_LOGPROBS and len(request.prompt_details) < self.prompt - 1

    @property
    def order(self) -> tuple[int, int]:
        """The greatest is preempted first."""
        return self.request.params.priority, self.request.arrival

    def follow(self, token: int) -> bool:
        """Its grammar and its counts take a new token; True if the grammar is over with it."""
        if self.counts is not None:
            self.counts.add(token)
        if self.thinking is not None:
            self.thinking.add(token)
        return self.matcher is not None and self.matcher.consume(token)

    def taken(self) -> Output:
        """The new tokens, removed from the sequence."""
        ids, details = self.new_ids, self.new_details
        self.new_ids, self.new_details = [], []
        logprobs = [detail.logprob for detail in details]
        if not self.echo:
            return Output(ids, logprobs, details=details)
        self.echo = False
        before = self.request.prompt_details
        logprobs = [1.0, *(detail.logprob for detail in before), *logprobs]
        return Output([*self.ids[: self.prompt], *ids], logprobs, details=details, prompt_details=before)


def forked(parent: Sequence, index: int, seed: int) -> Sequence:
    """Another text that goes on from where the parent is; it has no row and no blocks yet."""
    return Sequence(
        parent.request,
        index,
        parent.ids[:],
        parent.prompt,
        parent.counted,
        parent.limit,
        seed,
        parent.stops,
        matcher=parent.matcher.fork() if parent.matcher is not None else None,
        counts=parent.counts.copy() if parent.counts is not None else None,
        thinking=parent.thinking.copy() if parent.thinking is not None else None,
        score=parent.score,
        logprobs=list(parent.logprobs),
        new_details=list(parent.new_details),
    )


def members(sequence: Sequence) -> Iterator[Sequence]:
    """The running sequences that are preempted together: all beams of a search, or the sequence alone."""
    if sequence.params.beams > 1:
        yield from (s for s in sequence.request.sequences if s.row >= 0 or s is sequence)
    else:
        yield sequence
