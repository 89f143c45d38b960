"""One output of the pipeline to the records that tell the front end. This is the hot path: once per token.

Whether a token is the last is decided here from ids and counts. GenAI says it too, but an enum of its binding costs
1.4 to 5.5 us to look at, and its handling of stop ids with ignore_eos is not ours.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..protocol import PromptLogprobs, Record, Tokens
from .pipeline import Output
from .sequence import Sequence


class Diverged(Exception):
    """A sequence that had to begin again came to other tokens than those that were told."""


def tell(sequence: Sequence, outputs: Mapping[int, Output], out: list[Record]) -> bool:
    """New tokens of a sequence that streams; True if they were its last. Raises Astray."""
    output = outputs[0]
    ids = output.generated_ids
    logprobs = output.generated_log_probs if sequence.logprobs or sequence.echo else None
    if sequence.echo:
        ids, logprobs = _split_prompt(sequence, ids, logprobs or [], out)
    if not ids:
        return False
    generated = sequence.generated
    generated += ids
    reason = None
    if len(ids) == 1:
        if ids[0] in sequence.stops and len(generated) >= sequence.least:
            reason = "stop"
        elif len(generated) >= sequence.limit:
            reason = "length"
    else:
        reason = _cut(sequence, ids)
        logprobs = logprobs and logprobs[: len(ids)]
    if sequence.past:
        ids, logprobs = _untold(sequence, ids, logprobs)
        if not ids:
            return False
    request = sequence.request
    out.append(Tokens(request.id, sequence.index, ids, logprobs, reason))
    return reason is not None


def _cut(sequence: Sequence, ids: list[int]) -> str | None:
    """Shorten ids (several tokens of one step) to where the sequence ends, if it does, and say why."""
    before = len(sequence.generated) - len(ids)
    for position, token in enumerate(ids):
        count = before + position + 1
        reason = None
        if token in sequence.stops and count >= sequence.least:
            reason = "stop"
        elif count >= sequence.limit:
            reason = "length"
        if reason is not None:
            del ids[position + 1 :]
            del sequence.generated[count:]
            return reason
    return None


def _untold(sequence: Sequence, ids: list[int], logprobs: list[float] | None) -> tuple[list[int], list[float] | None]:
    """What goes beyond the past of a sequence that began again. Raises Astray."""
    start = len(sequence.generated) - len(ids)
    known = sequence.past[start : start + len(ids)]
    if ids[: len(known)] != known:
        raise Diverged
    if len(sequence.generated) >= len(sequence.past):
        sequence.past = []
    return ids[len(known) :], logprobs and logprobs[len(known) :]


def _split_prompt(
    sequence: Sequence, ids: list[int], logprobs: list[float], out: list[Record]
) -> tuple[list[int], list[float] | None]:
    """The first output of an echoing request starts with its prompt; GenAI gives its first token a made-up value."""
    size = len(sequence.prompt)
    sequence.echo = False
    out.append(PromptLogprobs(sequence.request.id, [None, *logprobs[1:size]]))
    return ids[size:], logprobs[size:] if sequence.logprobs else None


def tell_beams(sequence: Sequence, outputs: Mapping[int, Output], out: list[Record]) -> bool:
    """The answers of a beam search, best first, as many as were asked for; they all come at its end."""
    request = sequence.request
    ranked = sorted(outputs.values(), key=lambda output: output.score, reverse=True)
    for rank, output in enumerate(ranked[: request.sampling.n]):
        if rank in request.wanted:
            ids = output.generated_ids
            reason = "stop" if ids and ids[-1] in sequence.stops else "length"
            logprobs = output.generated_log_probs if sequence.logprobs else None
            out.append(Tokens(request.id, rank, ids, logprobs, reason))
    return True
