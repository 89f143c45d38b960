"""A sequence: one request to a pipeline of openvino_genai, from the queue to its last token."""

from __future__ import annotations

from dataclasses import dataclass, field

from .....engine.generation.sequence import QueuedSequence
from .pipeline import Handle, PipelineRequest


@dataclass(slots=True, eq=False, kw_only=True)
class GuardedSequence(QueuedSequence):
    """One choice of a request, or its beam search."""

    blocks: int
    """The most KV blocks that it may have at its end."""
    headroom: int = 1
    """The number of tokens that the next step may write."""
    echo: bool = False
    """Whether log probabilities of the prompt are still to be sent."""
    generated: list[int] = field(default_factory=list)
    """The tokens that were generated so far."""
    handle: Handle | None = None
    """The pipeline's handle of it while it runs; None if it does not run."""
    last_output_step: int = 0
    """The step of its last output, or before its first."""
    cancel_pending: bool = False
    """Whether it was cancelled, and will be removed when its prompt is computed."""

    @property
    def length(self) -> int:
        """The number of prompt and generated tokens."""
        return len(self.request.prompt) + len(self.generated)

    @property
    def has_images(self) -> bool:
        prompt = self.request.image_prompt
        return prompt is not None and bool(prompt.images)

    def pipeline_request(self) -> PipelineRequest:
        """Returns the request for the pipeline."""
        request = self.request
        return PipelineRequest(
            tokens=request.prompt,
            sampling=request.sampling,
            max_tokens=request.max_tokens,
            min_tokens=min(request.sampling.min_tokens, request.max_tokens),
            seed=request.seed(self.index),
            stops=request.stops,
            echo=self.echo,
            constraint=request.constraint,
            image_prompt=request.image_prompt,
        )

    def drop_images(self) -> None:
        """Drops the images when nobody waits for the request and the pipeline does not use it any more.

        A request and its sequences refer to each other, so the pixels would otherwise stay in memory until the garbage
        collection.
        """
        request = self.request
        if request.image_prompt is None or request.unfinished:
            return
        if all(s.handle is None for s in request.sequences):
            request.image_prompt = None
