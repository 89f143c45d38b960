"""A sequence while the paged engine computes it. Plain state; `scheduler` and `engine` decide."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..generation import sequence as generation
from .drafting.ngrams import NgramProposer
from .grammar.matcher import Matcher
from .params import Params
from .sampling.logprobs import TokenLogprobs
from .sampling.thinking_budget import ThinkingState
from .sampling.token_counts import TokenCounts
from .state_cache import NO_STATE

JUMP_FORWARD_SCORE = 4
"""By how many the wrong draft tokens of a grammar may exceed the right ones before its sequence gets none any more."""
State = Literal["waiting", "prefill", "decode", "over"]


class LogitArrays(NamedTuple):
    """The lists of a request, which may be as long as the vocabulary, as arrays that all its sequences use."""

    allowed: NDArray[np.int64]
    biased: NDArray[np.int64]
    bias: NDArray[np.float32]


class Search(Protocol):
    """A beam search. beams: those that run; before it begins, the sequence that computes the prompt. width: most."""

    beams: list[Sequence]
    width: int

    def begin_again(self) -> Sequence:
        """Forgets everything but the prompt; returns the sequence that computes it."""


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence(generation.QueuedSequence):
    """One text. ids: prompt and generated tokens; all but the newest are in the KV cache when it decodes, and all but
    two where the other was an alternative to a draft token: its keys and values are not in its place.

    prompt: tokens of the prompt. limit: most tokens of the text. arrival: the order in which requests came.
    row: its place in the block tables of running sequences, -1 if it does not run. blocks: its KV blocks in order;
    chain: the serial numbers of those that are in the prefix cache. cached: prompt tokens that were found there, -1
    before that is known.
    looked_up: blocks were sought on disk.
    state_slot: of its state, with a hybrid network. written: slots to which the running step writes its next states.
    Tokens behind which a checkpoint is wanted, 0 for none: shared_ends: of prefixes that other prompts share;
    cached_end: of the cached blocks, if they have none; message_ends: of messages of a chat. completion_end: the serial
    number of the last generated block that has a checkpoint, 0 before there is one.
    draft_tokens: tokens that the running step computes for, behind ids. alternatives: other tokens in the place of the
    first of these. drafting: it may have some in the next step.
    ngrams: proposes draft tokens, None before the first. jump_forward: the draft tokens are its grammar's.
    drafted, accepted: tokens of each draft that was verified so far, but a grammar's, and how many were kept.
    jump_forward_score: 0 when too many of the grammar's were wrong. preempted: it has given its blocks back once.
    spoiled: its keys and values are not finite, and no block of it is cached.
    echo: the prompt's log probabilities are still to be sent; prompt_details: those so far, without the first token's.
    search: what the text is a beam of; score, logprobs: of a beam, cumulative and token by token.
    new_ids, new_details: not sent yet. reason: why it has ended. repetition: as in SamplingParams.
    """

    params: Params
    ids: array[int]
    prompt: int
    limit: int
    seed: int = 0
    stops: frozenset[int] = frozenset()
    arrival: int = 0
    state: State = "waiting"
    row: int = -1
    blocks: list[int] = field(default_factory=list)
    chain: list[int] = field(default_factory=list)
    state_slot: int = NO_STATE
    written: list[int] = field(default_factory=list)
    shared_ends: set[int] = field(default_factory=set)
    cached_end: int = 0
    message_ends: tuple[int, ...] = ()
    completion_end: int = 0
    cached: int = -1
    looked_up: bool = False
    matcher: Matcher | None = None
    arrays: LogitArrays | None = None
    counts: TokenCounts | None = None
    thinking: ThinkingState | None = None
    draft_tokens: list[int] = field(default_factory=list)
    alternatives: list[int] = field(default_factory=list)
    drafting: bool = False
    ngrams: NgramProposer | None = None
    jump_forward: bool = False
    jump_forward_score: int = JUMP_FORWARD_SCORE
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    preempted: bool = False
    spoiled: bool = False
    echo: bool = False
    prompt_details: list[TokenLogprobs] = field(default_factory=list)
    search: Search | None = None
    score: float = 0.0
    logprobs: list[float] = field(default_factory=list)
    new_ids: list[int] = field(default_factory=list)
    new_details: list[TokenLogprobs] = field(default_factory=list)
    reason: str | None = None
    repetition: tuple[int, int, int] | None = None

    @property
    def length(self) -> int:
        return len(self.ids)

    @property
    def generated(self) -> int:
        return len(self.ids) - self.prompt

    @property
    def needs_prompt_logprobs(self) -> bool:
        """Whether log probabilities of the prompt are wanted and not complete, so that all of it has to be computed."""
        return self.echo and len(self.prompt_details) < self.prompt - 1

    @property
    def members(self) -> Seq[Sequence]:
        """The running sequences that are preempted together: all beams of a search, or the sequence alone."""
        return tuple(self.search.beams) if self.search is not None else (self,)

    @property
    def rows(self) -> int:
        """Rows of the block tables that the sequence takes, or will take when its prompt is computed."""
        return self.search.width if self.search is not None else 1

    def follow(self, token: int) -> bool:
        """Gives a new token to the sequence's grammar and counts; True if the grammar is over with it."""
        if self.counts is not None:
            self.counts.add(token)
        if self.thinking is not None:
            self.thinking.add(token)
        return self.matcher is not None and self.matcher.consume(token)


def forked(parent: Sequence, index: int) -> Sequence:
    """Returns a sequence that goes on from where the parent is; it has no row and no blocks yet."""
    return Sequence(
        request=parent.request,
        index=index,
        params=parent.params,
        ids=parent.ids[:],
        prompt=parent.prompt,
        limit=parent.limit,
        seed=parent.seed,
        stops=parent.stops,
        arrival=parent.arrival,
        charged=parent.charged,
        matcher=parent.matcher.fork() if parent.matcher is not None else None,
        arrays=parent.arrays,
        counts=parent.counts.copy() if parent.counts is not None else None,
        thinking=parent.thinking.copy() if parent.thinking is not None else None,
        search=parent.search,
        score=parent.score,
        logprobs=list(parent.logprobs),
        new_details=list(parent.new_details),
    )
