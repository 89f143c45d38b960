"""A sequence while the paged engine computes it. Plain state; `scheduler` and `engine` decide."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..generation import sequence as generation
from .params import Params

if TYPE_CHECKING:
    from .sampling.logit_state import ThinkingState, TokenCounts
    from .sampling.logprobs import TokenLogprobs

JUMP_FORWARD_SCORE = 4
"""A sequence gets no draft tokens of its grammar any more after so many more rejected than accepted ones."""
State = Literal["waiting", "prefill", "decode", "over"]


NO_STATE = -1
"""In the place of a slot of the state cache: there is no state."""


class TextProposer(Protocol):
    """Drafts tokens for one sequence, whose ids only grow, from the text alone."""

    def propose(self, ids: array[int], most: int, few: bool) -> list[int]:
        """Returns draft tokens to follow a text; all may be wrong.

        Args:
            ids: The tokens of the text.
            most: The most draft tokens.
            few: Whether few sequences decode, so that a wrong draft token costs little.
        """


class Matcher(Protocol):
    """The state of one text in its grammar."""

    def prepare(self) -> None:
        """Computes the mask early, while the network computes. Optional before `apply`."""

    def apply(self, row: NDArray[np.float32]) -> None:
        """Forbids, in a logits row [vocab], what may not come next. Raises params.NoToken."""

    def consume(self, token: int) -> bool:
        """Takes the next token; True when the grammar is over and nothing may follow."""

    def forced(self) -> list[int]:
        """Returns tokens of the text that has to come next, as far as the grammar leaves no choice.

        The model may write the same text with other tokens, so these are draft tokens.
        """

    def fork(self) -> Matcher:
        """Returns the same state for another sequence that goes on from here."""


class LogitArrays(NamedTuple):
    """The lists of a request, which may be as long as the vocabulary, as arrays that all its sequences use."""

    allowed: NDArray[np.int64]
    """The only tokens that may be sampled; empty: any."""
    biased: NDArray[np.int64]
    """Tokens whose logits are changed."""
    bias: NDArray[np.float32]
    """What is added to the logit of each of these."""


class Continuation(NamedTuple):
    """A beam with one more token."""

    parent: Sequence
    """The beam."""
    token: int
    """The token."""
    score: float
    """The log probability of the whole text."""
    logprob: float
    """The log probability of the token by the model's own logits."""
    detail: TokenLogprobs | None
    """The token's log probability, its rank and other tokens; None unless the request wants log probabilities."""


class Hypothesis(NamedTuple):
    """A finished completion."""

    ids: list[int]
    """The ids of the tokens."""
    logprobs: list[float]
    """The log probabilities of these tokens."""
    score: float
    """The log probability of all of them, divided by length ** length_penalty."""
    details: list[TokenLogprobs]
    """The log probability of each token with its rank and other tokens; empty unless the request wants them."""


class Search(Protocol):
    """A search of the likeliest texts of one request, with several sequences."""

    beams: list[Sequence]
    """The beams that run; before the search begins, the sequence that computes the prompt."""
    width: int
    """The most beams."""

    def begin_again(self) -> Sequence:
        """Forgets everything but the prompt; returns the sequence that computes it."""

    def advance(self, beams: Seq[Sequence], logits: NDArray[np.float32]) -> list[Continuation]:
        """Returns the next beams, best first; none when the search is over.

        Args:
            beams: The beams as they are.
            logits: The logits [beams, vocabulary] of their next tokens, which are changed in place.

        Raises:
            NoToken: No beam can go on, and none has ended.
        """

    def close(self, beams: Seq[Sequence]) -> list[Hypothesis]:
        """Returns the `width` best hypotheses, or all that there are, best first.

        Args:
            beams: The beams that still run, and have no more room.
        """


SearchFactory = Callable[["Sequence"], Search]
"""Makes the search that begins with a sequence, which computes the prompt."""


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence(generation.QueuedSequence):
    """One text that is computed: a choice of a request, or a beam of a search."""

    params: Params
    """What this engine does with it, read from the request's fields."""
    ids: array[int]
    """Prompt and generated tokens. When it decodes, the keys and values of all but the newest are in the KV cache, and
    of all but two where the other was an alternative to a draft token: its own are not in its place."""
    prompt: int
    """The tokens of the prompt."""
    limit: int
    """The most tokens of the whole text."""
    seed: int = 0
    """The seed of its random numbers."""
    stops: frozenset[int] = frozenset()
    """The tokens that end it."""
    arrival: int = 0
    """The place in the order in which sequences came."""
    state: State = "waiting"
    row: int = -1
    """The row of the block tables; -1: it does not run."""
    blocks: list[int] = field(default_factory=list)
    """The KV blocks, in the order of the tokens."""
    chain: list[int] = field(default_factory=list)
    """The serial numbers of those blocks that are in the prefix cache, from the first one on."""
    state_slot: int = NO_STATE
    """The slot of its state, with a hybrid network."""
    written: list[int] = field(default_factory=list)
    """The slots to which the running step writes its next states."""
    shared_ends: set[int] = field(default_factory=set)
    """Numbers of tokens with which other prompts begin too: a checkpoint is wanted behind each."""
    cached_end: int = 0
    """The tokens of cached blocks behind which there is no checkpoint, so that one is wanted; 0: there are none."""
    message_ends: tuple[int, ...] = ()
    """Numbers of tokens behind messages of a chat where checkpoints are wanted."""
    completion_end: int = 0
    """The serial number of the last generated block that has a checkpoint; 0: none has."""
    cached: int = -1
    """The prompt's tokens that were found in the prefix cache; -1: it was not looked for yet."""
    looked_up: bool = False
    """Whether a hook has looked for its blocks outside the KV cache, and is not asked again."""
    matcher: Matcher | None = None
    """What follows its grammar; None: it has none, or has not begun."""
    arrays: LogitArrays | None = None
    """The lists of its request as arrays, once they were needed."""
    counts: TokenCounts | None = None
    """How often each token is in it, where penalties need that."""
    thinking: ThinkingState | None = None
    """Where it is in its reasoning, where that has a budget."""
    draft_tokens: list[int] = field(default_factory=list)
    """Tokens that may follow `ids`, for which the running step computes logits, too."""
    alternatives: list[int] = field(default_factory=list)
    """Other tokens in the place of the first of these."""
    drafting: bool = False
    """Whether it may have draft tokens in the next step, which is then a chunk of its own."""
    copies: TextProposer | None = None
    """What proposes draft tokens from the text itself; None: nothing was proposed yet."""
    jump_forward: bool = False
    """Whether the draft tokens are its grammar's: the only ones that it allows."""
    jump_forward_score: int = JUMP_FORWARD_SCORE
    """How many more of its grammar's draft tokens may be rejected than accepted before it gets none of these."""
    drafted: list[int] = field(default_factory=list)
    """The draft tokens of each step so far, but for those of its grammar."""
    accepted: list[int] = field(default_factory=list)
    """How many of each of these were kept."""
    preempted: bool = False
    """Whether it has given its blocks back once."""
    spoiled: bool = False
    """Whether its keys and values are not finite, so that no block of it is cached."""
    echo: bool = False
    """Whether the log probabilities of its prompt are still to be sent."""
    prompt_details: list[TokenLogprobs] = field(default_factory=list)
    """Those that are computed so far; the first token has none."""
    search: Search | None = None
    """The beam search that it is a beam of."""
    score: float = 0.0
    """The sum of its log probabilities, of a beam."""
    logprobs: list[float] = field(default_factory=list)
    """The log probability of each generated token, of a beam."""
    new_ids: list[int] = field(default_factory=list)
    """Generated tokens that were not sent yet."""
    new_details: list[TokenLogprobs] = field(default_factory=list)
    """Their log probabilities, where the request wants them."""
    reason: str | None = None
    """Why it has ended; None: it has not."""
    repetition: tuple[int, int, int] | None = None
    """When it ends because it repeats itself, as SamplingParams.repetition; None: never."""

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
