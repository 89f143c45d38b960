"""A sequence of one of openvino_genai's pipelines: one request to the pipeline, from the queue to its last token."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...generation.sequence import QueuedSequence
from .pipeline import Handle, PipelineRequest


@dataclass(slots=True, eq=False, kw_only=True)
class GuardedSequence(QueuedSequence):
    """headroom: tokens beyond prompt and generated that the next step may write. reserved_blocks: KV blocks booked for
    its whole life (beam search), 0 to book as it grows. echo: prompt log probabilities are still to be sent.
    """

    headroom: int = 1
    reserved_blocks: int = 0
    echo: bool = False
    generated: list[int] = field(default_factory=list)

    # while it waits
    block_hashes: list[int] | None = None  # of its prompt, for PrefixTracker
    cached_until: int = 0  # KvBudget.reused_after when it was added
    cached: int | None = None  # prompt tokens found in the prefix cache, as far as the scheduler knows

    # while it runs
    handle: Handle | None = None
    capacity: int = 0  # tokens that its booked blocks hold
    blocks: int = 0
    last_output_step: int = 0
    cancel_pending: bool = False  # cancelled; it is removed when its prompt is computed
    times_dropped: int = 0  # by the pipeline, for lack of KV blocks
    already_sent: list[int] = field(default_factory=list)  # tokens sent before it was started again from its prompt

    # from the request, read once per token
    prompt: list[int] = field(init=False)
    stops: frozenset[int] = field(init=False)
    max_tokens: int = field(init=False)
    min_tokens: int = field(init=False)
    logprobs: bool = field(init=False)
    plain: bool = field(init=False)  # its outputs are tokens, and perhaps their log probabilities, and nothing else

    def __post_init__(self) -> None:
        request, sampling = self.request, self.request.sampling
        self.prompt, self.stops, self.max_tokens = request.prompt, request.stops, request.max_tokens
        self.min_tokens, self.logprobs = sampling.min_tokens, sampling.logprobs
        self.plain = not (sampling.beams > 1 or sampling.repetition)

    @property
    def restarts_from_prompt(self) -> bool:
        """It cannot continue where it left the pipeline: it has a grammar, or its prompt is not token ids."""
        return bool(self.request.constraint) or self.request.image_prompt is not None

    @property
    def restart_cost(self) -> int:
        """It would begin again; or its penalties, which count generated tokens alone, would ignore those so far, which
        are a part of the prompt then."""
        sampling = self.request.sampling
        return 2 * self.restarts_from_prompt + bool(sampling.presence_penalty or sampling.frequency_penalty)

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
        return len(self.prompt) + len(self.generated)

    def take_request(self) -> PipelineRequest:
        """For Pipeline.add: the checked request the first time, then the rest of the work."""
        request = self.request
        checked = request.native if not self.index and not self.started else None
        if checked is not None:
            request.native = None
        return checked or self.pipeline_request()

    def pipeline_request(self) -> PipelineRequest:
        """The rest of the work: after a preemption the generated tokens are part of the prompt."""
        request, done = self.request, len(self.generated)
        return PipelineRequest(
            tokens=self.prompt + self.generated,
            sampling=request.sampling,
            max_tokens=self.max_tokens - done,
            min_tokens=min(max(0, self.min_tokens - done), self.max_tokens - done),
            seed=request.seed(self.index),
            stops=self.stops,
            echo=self.echo,
            done=done,
            constraint=request.constraint,
            image_prompt=request.image_prompt,
        )

    def drop_images(self) -> None:
        """Keep no pixels once nobody waits for the request and the pipeline has left it.

        A request and its sequences refer to each other, so that they stay in memory until garbage is collected.
        """
        request = self.request
        if request.image_prompt is None or request.unfinished:
            return
        if all(s.handle is None for s in request.sequences):
            request.image_prompt = request.native = None
