"""The state of a sequence in the paged engine, and the form in which its request gets there.

The scheduler and the step runner decide what happens to a sequence.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ...errors import BadRequest, EngineFailure, RequestError, last_line
from ...types import SamplingParams
from ..generation.fair_queue import GenerationRequest, QueuedSequence
from ..generation.request_validator import GREEDY_BELOW

if TYPE_CHECKING:
    from ..protocol import Record
    from .network import AdapterWeights, PromptEmbeddings
    from .sampling.logit_state import ThinkingState, TokenCounts
    from .sampling.logprobs import TokenLogprobs

log = logging.getLogger(__name__)

JUMP_FORWARD_SCORE = 4
"""If this many more of its grammar's draft tokens were rejected than accepted, a sequence gets no more of them."""
MAX_DRAFTED = 20
"""The most draft tokens in a step if only the draft model's confidence limits them; transformers' default."""
MAX_COPIED = 32
"""The most draft tokens in a step, and the longest n-gram to look up, if a request does not set them."""
MOST_SORTED = 256
"""The greatest top_k by which tokens are sorted; with a greater one, all others are forbidden. Sorting 150,000 tokens
took 30 ms for each sequence of the step with any top_k (2026-11)."""
REPLACED = (
    *("temperature", "top_k", "top_p", "min_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)
"""The parameters that a sampler chain applies itself."""
State = Literal["waiting", "prefill", "decode", "over"]


NO_STATE = -1
"""The value of a state slot if there is no state."""


class NoToken(Exception):
    """Raised if a request's parameters leave no token to sample."""


def request_error(error: Exception) -> RequestError:
    """Returns the error with which a request fails that has caused an exception."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, NoToken):
        return BadRequest(str(error))
    log.error("%s", last_line(error))
    return EngineFailure("The engine failed while it computed this request.")


class Matcher(Protocol):
    """The state of one text with respect to its grammar."""

    def prepare(self) -> None:
        """Computes the token mask early, while the network computes. `apply` does it otherwise."""

    def apply(self, row: NDArray[np.float32]) -> None:
        """Forbids the tokens that the grammar does not allow next, in a logits row [vocab]. Raises NoToken."""

    def consume(self, token: int) -> bool:
        """Processes the next token. Returns True if the grammar is complete, so that nothing may follow."""

    def forced(self) -> list[int]:
        """Returns tokens for the text that the grammar forces, as drafts, since the model may split it otherwise."""

    def fork(self) -> Matcher:
        """Returns a copy of the state for another sequence that continues from here."""


class SamplerChain(Protocol):
    """The samplers of one sequence that replace the usual ones. A copy of it is never needed: no beam has one."""

    def apply(self, row: NDArray[np.float32]) -> None:
        """Replaces a logits row [vocab] by one whose softmax is the next token's distribution.

        At temperature 0 the next token is the likeliest. Logits of -inf stay so.
        """

    def accept(self, token: int) -> None:
        """Processes the token that was sampled from the row of the last `apply`."""


class LogitArrays(NamedTuple):
    """Lists of a request that may be as long as the vocabulary, as arrays that all its sequences share."""

    allowed: NDArray[np.int64]
    """The only tokens that may be sampled; empty for all tokens."""
    biased: NDArray[np.int64]
    """The tokens with a logit bias."""
    bias: NDArray[np.float32]
    """The bias of each of these tokens."""


class Search(Protocol):
    """A beam search for one request."""

    beams: list[Sequence]
    """The running beams; before the search begins, the sequence that computes the prompt."""
    width: int
    """The most beams."""

    def begin_again(self) -> Sequence:
        """Discards everything except the prompt, and returns the sequence that computes it."""

    def choose(self, beams: list[Sequence], logits: NDArray[np.float32]) -> None:
        """Chooses the next beams by logits [beams, vocabulary], which it changes. Raises NoToken if there are none."""

    def advance(self, leave: Callable[[Sequence], None], fork: Callable[[Sequence, Sequence], None]) -> bool:
        """Replaces the beams, for which there is room, by `leave` and `fork`; returns whether the search is over."""

    def records(self) -> list[Record]:
        """Returns a record for each choice that is not cancelled: its text, best first, or that none was found."""


SearchFactory = Callable[["Sequence"], Search]
"""A function that creates a search from the sequence that computes the prompt."""


class Prepared(NamedTuple):
    """The native form of a request in the paged engine (GenerationRequest.native)."""

    params: SamplingParams
    """The sampling parameters, as `engine_params` returns them."""
    adapter: AdapterWeights | None = None
    """The adapter's weights, which are added to the model's; None for no adapter."""
    images: PromptEmbeddings | None = None
    """The embeddings of the prompt's images; None for a prompt of text alone."""


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence(QueuedSequence):
    """A text that is being computed: a choice of a request, or a beam of a search."""

    params: SamplingParams
    """The sampling parameters of the request, as `engine_params` returns them."""
    adapter: AdapterWeights | None = None
    """The adapter's weights, which are added to the model's; None for no adapter."""
    images: PromptEmbeddings | None = None
    """The embeddings of the prompt's images; None for a prompt of text alone."""
    ids: array[int]
    """The prompt and generated tokens. While decoding, the keys and values of all but the newest token are in the KV
    cache. If the token before it was an alternative to a draft token, its keys and values are missing, too, since they
    are elsewhere."""
    prompt: int
    """The number of prompt tokens."""
    limit: int
    """The most tokens of the whole text."""
    seed: int = 0
    """The seed of the random numbers."""
    stops: frozenset[int] = frozenset()
    """The ids of the stop tokens."""
    arrival: int = 0
    """A number that increases with the order of arrival."""
    state: State = "waiting"
    """The stage of the sequence."""
    row: int = -1
    """The row in the block tables; -1 if it is not running."""
    blocks: list[int] = field(default_factory=list)
    """The KV blocks in the order of the tokens."""
    chain: list[int] = field(default_factory=list)
    """The serial numbers of the blocks that are in the prefix cache, from the first one on."""
    state_slot: int = NO_STATE
    """The slot of the sequence's state in a hybrid network."""
    written: list[int] = field(default_factory=list)
    """The slots to which the running step writes the sequence's next states."""
    shared_ends: set[int] = field(default_factory=set)
    """Lengths of prefixes that other prompts share; a checkpoint should be made after each."""
    cached_end: int = 0
    """The length of a cached prefix that needs a checkpoint at its end, without which it was of no use; 0 for none."""
    message_ends: tuple[int, ...] = ()
    """Lengths of prefixes that end with a message of a chat, where checkpoints should be made."""
    completion_end: int = 0
    """The serial number of the last generated block with a checkpoint; 0 for none."""
    cached: int = -1
    """The number of prompt tokens found in the prefix cache; -1 before the search."""
    looked_up: bool = False
    """Whether a hook has already looked for its blocks outside of the KV cache."""
    matcher: Matcher | None = None
    """The matcher of its grammar; None if it has no grammar, or has not started."""
    arrays: LogitArrays | None = None
    """The lists of its request as arrays; None until they are needed."""
    sampler_chain: SamplerChain | None = None
    """The samplers that replace the usual ones, or None."""
    counts: TokenCounts | None = None
    """The counts of its tokens, if penalties need them."""
    thinking: ThinkingState | None = None
    """The progress of its reasoning, if that is limited."""
    draft_tokens: list[int] = field(default_factory=list)
    """The draft tokens after `ids`, which the running step verifies."""
    alternatives: list[int] = field(default_factory=list)
    """Alternatives to the first draft token."""
    drafting: bool = False
    """Whether it may have draft tokens in the next step, in which it is computed as a chunk."""
    jump_forward: bool = False
    """Whether its draft tokens are those that the grammar forces."""
    jump_forward_score: int = JUMP_FORWARD_SCORE
    """How many more draft tokens of its grammar may be rejected than accepted before it gets no more of them."""
    drafted: list[int] = field(default_factory=list)
    """The number of draft tokens in each step so far, except those of its grammar."""
    accepted: list[int] = field(default_factory=list)
    """The number of accepted tokens for each entry of `drafted`."""
    preempted: bool = False
    """Whether it has been preempted before."""
    spoiled: bool = False
    """Whether its keys and values are not finite, so that none of its blocks may be cached."""
    echo: bool = False
    """Whether the log probabilities of its prompt have not been sent yet."""
    prompt_details: list[TokenLogprobs] = field(default_factory=list)
    """The log probabilities of the prompt computed so far; the first token has none."""
    search: Search | None = None
    """The beam search to which it belongs, or None."""
    score: float = 0.0
    """The sum of the log probabilities of a beam."""
    logprobs: list[float] = field(default_factory=list)
    """The log probability of each generated token of a beam."""
    new_ids: list[int] = field(default_factory=list)
    """The generated tokens that have not been sent yet."""
    new_details: list[TokenLogprobs] = field(default_factory=list)
    """The log probabilities of `new_ids`, if the request asks for them."""
    reason: str | None = None
    """The finish reason; None if it has not ended."""
    repetition: tuple[int, int, int] | None = None
    """The settings by which it ends if it repeats itself (SamplingParams.repetition); None for never."""

    @property
    def shift(self) -> int:
        """The offset from the index of a token after the prompt to its position."""
        return self.images.shift if self.images is not None else 0

    @property
    def edited(self) -> bool:
        """Whether logits are changed before a token is sampled (sampling.logits_processors)."""
        params, request = self.params, self.request
        return bool(
            self.matcher is not None
            or self.sampler_chain is not None
            or params.penalised
            or params.logit_bias
            or params.allowed_token_ids is not None
            or request.bad_words
            or request.thinking is not None
            or (params.min_tokens and self.stops)
            or self.keeps_many
        )

    @property
    def keeps_many(self) -> bool:
        """Whether all but the likeliest tokens are forbidden, since top_k is greater than MOST_SORTED."""
        return self.params.temperature > 0 and self.params.top_k > MOST_SORTED

    @property
    def generated(self) -> int:
        return len(self.ids) - self.prompt

    @property
    def needs_prompt_logprobs(self) -> bool:
        """Whether log probabilities of the prompt are still missing, so that all of it must be computed."""
        return self.echo and len(self.prompt_details) < self.prompt - 1

    @property
    def members(self) -> Seq[Sequence]:
        """The running sequences that are preempted together with it: all beams of its search, or itself alone."""
        return tuple(self.search.beams) if self.search is not None else (self,)

    @property
    def rows(self) -> int:
        """The number of block table rows that it takes, or will take once its prompt is computed."""
        return self.search.width if self.search is not None else 1

    def follow(self, token: int) -> bool:
        """Passes a new token to the sequence's grammar, samplers and counts. Returns True if the grammar is over."""
        if self.counts is not None:
            self.counts.add(token)
        if self.thinking is not None:
            self.thinking.add(token)
        if self.sampler_chain is not None:
            self.sampler_chain.accept(token)
        return self.matcher is not None and self.matcher.consume(token)


def forked(parent: Sequence, index: int) -> Sequence:
    """Returns a sequence that continues from the state of another; it has no row and no blocks yet."""
    return Sequence(
        request=parent.request,
        index=index,
        params=parent.params,
        adapter=parent.adapter,
        images=parent.images,
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


def engine_params(request: GenerationRequest, *, speculative: bool, ngrams: bool = False) -> SamplingParams:
    """Returns a request's sampling parameters with what the engine decides: draft tokens and greedy decoding.

    Args:
        request: The request.
        speculative: Whether a draft model or prompt lookup is available, so that the request's number of draft tokens
            applies.
        ngrams: Whether n-grams are looked up even if the request does not ask for it.
    """
    sampling = request.sampling
    drafted = MAX_COPIED if ngrams else (sampling.num_assistant_tokens or MAX_DRAFTED) if speculative else 0
    cold = sampling.temperature <= GREEDY_BELOW or sampling.beams > 1
    if sampling.sampler_chain is not None:  # which applies them; its result is sampled from as it is
        kept = SamplingParams(temperature=1.0)
        sampling = replace(sampling, **{name: getattr(kept, name) for name in REPLACED})
    return replace(
        sampling,
        temperature=0.0 if cold else sampling.temperature,
        min_tokens=min(sampling.min_tokens, request.max_tokens),
        num_assistant_tokens=drafted if sampling.beams == 1 else 0,
        max_ngram_size=MAX_COPIED if ngrams else sampling.max_ngram_size,
    )
