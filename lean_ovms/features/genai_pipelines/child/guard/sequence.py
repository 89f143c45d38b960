"""A sequence of one of openvino_genai's pipelines: one request to the pipeline, from the queue to its last token."""

from __future__ import annotations

from dataclasses import dataclass, field

from .....engine.generation.sequence import QueuedSequence
from .pipeline import Handle, PipelineRequest


@dataclass(slots=True, eq=False, kw_only=True)
class GuardedSequence(QueuedSequence):
    """One choice of a request, or its beam search."""

    headroom: int = 1
    """Tokens beyond prompt and generated that the next step may write."""
    reserved_blocks: int = 0
    """KV blocks that are counted for its whole life (beam search); 0: as it grows."""
    echo: bool = False
    """Whether log probabilities of the prompt are still to be sent."""
    generated: list[int] = field(default_factory=list)
    """Tokens that were generated since it was last started from its prompt."""
    already_sent: list[int] = field(default_factory=list)
    """The tokens that were sent before that."""
    times_dropped: int = 0
    """How often the pipeline dropped it for lack of KV blocks."""
    handle: Handle | None = None
    """What the pipeline knows it by, while it runs."""
    last_output_step: int = 0
    """The step of its last output, or before its first."""
    cancel_pending: bool = False
    """Whether it was cancelled, and is removed when its prompt is computed."""
    spoken_at: int = -1
    """The number of `retries` when audio was sent."""

    @property
    def length(self) -> int:
        return len(self.request.prompt) + len(self.generated)

    @property
    def has_images(self) -> bool:
        prompt = self.request.image_prompt
        return prompt is not None and bool(prompt.images)

    @property
    def restarts_from_prompt(self) -> bool:
        """Whether it cannot continue where it left the pipeline: it has a grammar, or its prompt is not token ids."""
        return bool(self.request.constraint) or self.request.image_prompt is not None

    @property
    def restart_cost(self) -> int:
        """How much is lost: it would begin again; or its penalties, which count generated tokens alone, would not count
        those so far, which are a part of the prompt then."""
        sampling = self.request.sampling
        return 2 * self.restarts_from_prompt + bool(sampling.presence_penalty or sampling.frequency_penalty)

    def reset(self) -> None:
        """Prepares a sequence that has left the pipeline to be added again.

        It continues from its generated tokens, unless it has a grammar, which the pipeline would match from its
        beginning, or images, whose pipeline takes no tokens. Then everything is generated once more, compared with what
        was already sent, and not sent twice.
        """
        self.has_output = False
        if self.restarts_from_prompt and self.generated:
            self.already_sent = max(self.already_sent, self.generated, key=len)
            self.generated = []

    def take_request(self) -> PipelineRequest:
        """Returns what Pipeline.add takes: the request that was checked, or what is left of it after a preemption."""
        request = self.request
        checked = request.native if not self.index and not self.started else None
        if checked is not None:
            request.native = None
        return checked or self.pipeline_request()

    def pipeline_request(self) -> PipelineRequest:
        """Returns the rest of the work: after a preemption the generated tokens are part of the prompt."""
        request, done = self.request, len(self.generated)
        left = request.max_tokens - done
        return PipelineRequest(
            tokens=request.prompt + self.generated,
            sampling=request.sampling,
            max_tokens=left,
            min_tokens=min(max(0, request.sampling.min_tokens - done), left),
            seed=request.seed(self.index),
            stops=request.stops,
            echo=self.echo,
            done=done,
            constraint=request.constraint,
            image_prompt=request.image_prompt,
        )

    def drop_images(self) -> None:
        """Keeps no pixels once nobody waits for the request and the pipeline has left it.

        A request and its sequences refer to each other, so that they stay in memory until garbage is collected.
        """
        request = self.request
        if request.image_prompt is None or request.unfinished:
            return
        if all(s.handle is None for s in request.sequences):
            request.image_prompt = request.native = None
