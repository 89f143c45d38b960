"""A request and its sequences while they live in the engine: plain state, one object per thing that lives.

A Request is what the front end submitted; a Sequence is one engine request that works for it (n of them for n > 1,
one for a whole beam search). Nothing here decides anything: `batch` does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...types import SamplingParams
from .pipeline import Handle, ImagePrompt, PipelineRequest


@dataclass(slots=True, eq=False)
class Request:
    """One Submit. wanted: indices of the answers that the front end still waits for. constraint: its grammar.

    scene: its prompt, for a pipeline that sees. counted: the front end knows its true number of prompt tokens.
    """

    id: int
    sampling: SamplingParams
    wanted: set[int]
    constraint: str = ""
    sequences: list[Sequence] = field(default_factory=list)
    scene: ImagePrompt | None = None
    counted: bool = True


@dataclass(slots=True, eq=False)
class Sequence:
    """One engine request, from the queue to its last token.

    limit: most tokens it may generate. stops: ids that end it. headroom: tokens beyond prompt and generated that the
    next step may write. reserve: blocks booked for its whole life (beam search), 0 to book as it grows.
    echo: prompt log probabilities are still to be reported.
    """

    request: Request
    index: int
    prompt: list[int]
    limit: int
    stops: frozenset[int]
    headroom: int
    reserve: int = 0
    echo: bool = False
    generated: list[int] = field(default_factory=list)

    # while it waits: hashes of its prompt's blocks, for `prefixes`
    hashes: list[int] | None = None
    certain: int = 0  # kv.Accounts.certain when it was added
    retries: int = 0  # failed steps that it lived through

    # while it runs
    handle: Handle | None = None
    order: int = 0  # place in the order of admission
    capacity: int = 0  # tokens that its booked blocks hold
    blocks: int = 0
    heard: int = 0  # the step of its last output
    has_output: bool = False  # has had output since it was added
    cancel_pending: bool = False  # nobody wants it any more; it is out when its prompt is computed
    lost: int = 0  # times that the pipeline gave up on it
    past: list[int] = field(default_factory=list)  # told before it had to begin again

    # of the sampling, read once per token
    least: int = 0
    logprobs: bool = False
    beams: bool = False

    def __post_init__(self) -> None:
        asked = self.request.sampling
        self.least, self.logprobs, self.beams = asked.min_tokens, asked.logprobs, asked.beams > 1

    @property
    def constrained(self) -> bool:
        """It has a grammar, whose state is lost when it leaves the pipeline."""
        return bool(self.request.constraint)

    @property
    def begins_again(self) -> bool:
        """It cannot go on from where it was when it left the pipeline: it has a grammar, or its prompt is no tokens."""
        return bool(self.request.constraint) or self.request.scene is not None

    @property
    def penalised(self) -> bool:
        """Its penalties count generated tokens only."""
        return bool(self.request.sampling.presence_penalty or self.request.sampling.frequency_penalty)

    def leave(self) -> None:
        """It is out of the pipeline and will be added again.

        It goes on from what it has, unless it has a grammar, which the pipeline would match from its beginning, or
        images, whose pipeline takes no tokens. Then all is generated once more, and what was told is compared and not
        told twice.
        """
        self.has_output = False
        if self.begins_again and self.generated:
            self.past = max(self.past, self.generated, key=len)
            self.generated = []

    @property
    def length(self) -> int:
        """Prompt and generated tokens."""
        return len(self.prompt) + len(self.generated)

    def work(self) -> PipelineRequest:
        """What is left to do: after a preemption the generated tokens are part of the prompt."""
        asked, done = self.request.sampling, len(self.generated)
        seed = asked.seeds[self.index] if self.index < len(asked.seeds) else 0
        return PipelineRequest(
            tokens=self.prompt + self.generated,
            sampling=asked,
            max_tokens=self.limit - done,
            min_tokens=min(max(0, asked.min_tokens - done), self.limit - done),
            seed=seed,
            stops=self.stops,
            echo=self.echo,
            done=done,
            constraint=self.request.constraint,
            scene=self.request.scene,
        )
