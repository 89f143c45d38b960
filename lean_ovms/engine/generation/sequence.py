"""A request and its sequences while they live in the engine: plain state.

A Request is what the front end submitted; a Sequence is one request to the pipeline that works for it (n of them for
n > 1, one for a whole beam search). Nothing is decided here: the scheduler does that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...types import SamplingParams
from .pipeline import GrammarCost, Handle, ImagePrompt, PipelineRequest, Thinking

if TYPE_CHECKING:
    from .fair_queue import Group


@dataclass(slots=True, eq=False)
class Request:
    """One Submit. unfinished: indices of the choices that the front end still waits for. constraint: its grammar.

    image_prompt: its prompt, for a pipeline of a model with vision. prompt_counted: the front end has the exact number
    of prompt tokens. client, group_key, priority: as in protocol.Submit. group, queued: fair_queue's.
    bad_words, thinking, adapter: as in PipelineRequest.
    """

    id: int
    sampling: SamplingParams
    unfinished: set[int]
    constraint: str = ""
    cost: GrammarCost | None = None  # of the constraint, when it is known
    sequences: list[Sequence] = field(default_factory=list)
    image_prompt: ImagePrompt | None = None
    prompt_counted: bool = True
    client: str = ""
    group_key: int = 0
    priority: int = 0
    group: Group | None = None
    queued: bool = False  # none of its sequences has started
    bad_words: tuple[tuple[int, ...], ...] = ()
    thinking: Thinking | None = None
    adapter: str = ""

    def drop_images(self) -> None:
        """Keep no pixels once nobody waits for it and the pipeline has left it.

        A request and its sequences refer to each other, so that they stay in memory until garbage is collected.
        """
        if self.image_prompt is not None and not self.unfinished and all(s.handle is None for s in self.sequences):
            self.image_prompt = None
            for sequence in self.sequences:
                sequence.checked_request = None


@dataclass(slots=True, eq=False)
class Sequence:
    """One request to the pipeline, from the queue to its last token.

    max_tokens: most tokens it may generate. stops: ids that end it. headroom: tokens beyond prompt and generated that
    the next step may write. reserved_blocks: KV blocks booked for its whole life (beam search), 0 to book as it grows.
    echo: prompt log probabilities are still to be sent. details: outputs have alternatives, which are wanted.
    """

    request: Request
    index: int
    prompt: list[int]
    max_tokens: int
    stops: frozenset[int]
    headroom: int
    reserved_blocks: int = 0
    echo: bool = False
    details: bool = False
    generated: list[int] = field(default_factory=list)

    # while it waits
    checked_request: PipelineRequest | None = None  # passed Pipeline.check and was not added yet
    block_hashes: list[int] | None = None  # of its prompt, for PrefixTracker
    cached_until: int = 0  # KvBudget.reused_after when it was added
    retries: int = 0  # failed steps that interrupted it
    added_at: float = 0.0  # when it was first added, by the scheduler's clock
    cached: int | None = None  # prompt tokens found in the prefix cache, as far as the scheduler knows
    reported: int = 0  # prompt tokens of its last Progress

    # while it runs
    handle: Handle | None = None
    started: bool = False  # was added to the pipeline at least once
    capacity: int = 0  # tokens that its booked blocks hold
    blocks: int = 0
    last_output_step: int = 0
    has_output: bool = False  # since it was last added
    output_since: int = 0  # the step of its first output since it was last added
    charged: int = 0  # of its length: tokens that its client was charged for
    cancel_pending: bool = False  # cancelled; it is removed when its prompt is computed
    times_dropped: int = 0  # by the pipeline, for lack of KV blocks
    already_sent: list[int] = field(default_factory=list)  # tokens sent before it was started again from its prompt

    # from the sampling parameters, read once per token
    min_tokens: int = 0
    logprobs: bool = False
    beams: bool = False
    plain: bool = True  # its outputs are tokens, and perhaps their log probabilities, and nothing else
    reports_progress: bool = False

    def __post_init__(self) -> None:
        sampling = self.request.sampling
        self.min_tokens, self.logprobs, self.beams = sampling.min_tokens, sampling.logprobs, sampling.beams > 1
        self.plain = not (self.beams or self.details or sampling.repetition)
        if self.index == 0:
            self.reports_progress = sampling.report_progress

    @property
    def constrained(self) -> bool:
        """It has a grammar, whose state is lost when it leaves the pipeline."""
        return bool(self.request.constraint)

    @property
    def restarts_from_prompt(self) -> bool:
        """It cannot continue where it left the pipeline: it has a grammar, or its prompt is not token ids."""
        return bool(self.request.constraint) or self.request.image_prompt is not None

    @property
    def has_penalties(self) -> bool:
        """Penalties that count generated tokens only."""
        return bool(self.request.sampling.presence_penalty or self.request.sampling.frequency_penalty)

    def reset(self) -> None:
        """It is out of the pipeline and will be added again.

        It continues from its generated tokens, unless it has a grammar, which the pipeline would match from its
        beginning, or images, whose pipeline takes no tokens. Then everything is generated once more, compared with what
        was already sent, and not sent twice.
        """
        self.has_output = False
        if self.restarts_from_prompt and self.generated:
            self.already_sent = max(self.already_sent, self.generated, key=len)
            self.generated = []

    @property
    def length(self) -> int:
        """Prompt and generated tokens."""
        return len(self.prompt) + len(self.generated)

    def take_request(self) -> PipelineRequest:
        """For Pipeline.add: the checked request the first time, then the rest of the work."""
        checked, self.checked_request = self.checked_request, None
        return checked or self.pipeline_request()

    def pipeline_request(self) -> PipelineRequest:
        """The rest of the work: after a preemption the generated tokens are part of the prompt."""
        sampling, done = self.request.sampling, len(self.generated)
        seed = sampling.seeds[self.index] if self.index < len(sampling.seeds) else 0
        return PipelineRequest(
            tokens=self.prompt + self.generated,
            sampling=sampling,
            max_tokens=self.max_tokens - done,
            min_tokens=min(max(0, sampling.min_tokens - done), self.max_tokens - done),
            seed=seed,
            stops=self.stops,
            echo=self.echo,
            done=done,
            constraint=self.request.constraint,
            image_prompt=self.request.image_prompt,
            bad_words=self.request.bad_words,
            thinking=self.request.thinking,
            group=self.request.id if sampling.n > 1 else None,
            adapter=self.request.adapter,
        )
