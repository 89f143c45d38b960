"""A sequence: one request to a pipeline of openvino_genai, from the queue to its last token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .....engine.generation.fair_queue import QueuedSequence, repeats
from .....engine.protocol import ABSENT, REPETITION, PromptLogprobs, Record, SpokenTokens, Tokens
from .pipeline import GuardedOutput, Handle, PipelineRequest


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


def emit(sequence: GuardedSequence, outputs: Mapping[int, GuardedOutput], out: list[Record]) -> bool:
    """Appends the new tokens of a sequence to `out`, and returns whether they were its last."""
    if sequence.beams:
        _emit_beams(sequence, outputs, out)
        return True
    request, output = sequence.request, outputs[0]
    ids = output.generated_ids
    logprobs = output.generated_log_probs if request.sampling.logprobs or sequence.echo else []
    if sequence.echo:  # the output starts with the prompt, and GenAI invents the value of its first token
        sequence.echo, size = False, len(request.prompt)
        out.append(PromptLogprobs(request.id, [None, *logprobs[1:size]]))
        ids, logprobs = ids[size:], logprobs[size:]
    audio = output.audio if request.sampling.speaker is not None else b""
    if not ids and not audio:
        return False
    sequence.generated += ids
    reason = _cut(sequence, ids)
    logprobs = logprobs[: len(ids)]
    if request.sampling.speaker is not None:
        out.append(SpokenTokens(request.id, sequence.index, ids, None, reason, audio))
        return reason is not None
    out.append(Tokens(request.id, sequence.index, ids, logprobs if request.sampling.logprobs else None, reason))
    return reason is not None


def _cut(sequence: GuardedSequence, ids: list[int]) -> str | None:
    """Cuts the tokens of a step where the sequence ends. Returns the finish reason, or None if it does not end."""
    sampling, generated = sequence.request.sampling, sequence.generated
    before = len(generated) - len(ids)
    for count, token in enumerate(ids, before + 1):
        if token in sequence.request.stops and count >= sampling.min_tokens:
            reason = "stop"
        elif count >= sequence.request.max_tokens:
            reason = "length"
        elif sampling.repetition and count >= sampling.min_tokens and repeats(generated, count, *sampling.repetition):
            reason = REPETITION
        else:
            continue
        del ids[count - before :], generated[count:]
        return reason
    return None


def _emit_beams(sequence: GuardedSequence, outputs: Mapping[int, GuardedOutput], out: list[Record]) -> None:
    """Appends the n best results of a finished beam search to `out`, best first, or fewer if there are fewer."""
    request, sampling = sequence.request, sequence.request.sampling
    ranked = sorted(outputs.values(), key=lambda output: output.score, reverse=True)
    for rank, output in enumerate(ranked[: sampling.n]):
        if rank in request.unfinished:
            ids = output.generated_ids
            reason = "stop" if ids and ids[-1] in request.stops else "length"
            logprobs = output.generated_log_probs if sampling.logprobs else None
            out.append(Tokens(request.id, rank, ids, logprobs, reason))
    absent = request.unfinished.intersection(range(len(ranked), sampling.n))
    out += [Tokens(request.id, rank, [], None, ABSENT) for rank in sorted(absent)]
