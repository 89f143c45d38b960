"""One output of the pipeline to records for the front end. This is the hot path: once per token.

Whether a token is the last is decided here from ids and counts. GenAI reports it too, but reading an enum of its
binding costs 1.4 to 5.5 us, and its handling of stop ids with ignore_eos differs from ours.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...generation.repetition import repeats
from ...protocol import ABSENT, REPETITION, PromptLogprobs, Record, Tokens
from .pipeline import GuardedOutput
from .sequence import GuardedSequence


class Diverged(Exception):
    """A sequence that was started again generated other tokens than those already sent."""


def emit(sequence: GuardedSequence, outputs: Mapping[int, GuardedOutput], out: list[Record]) -> bool:
    """Append the new tokens of a sequence to `out`; True if they were its last. Raises Diverged."""
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
        if ids[0] in sequence.stops and len(generated) >= sequence.min_tokens:
            reason = "stop"
        elif len(generated) >= sequence.max_tokens:
            reason = "length"
    else:
        reason = _truncate(sequence, ids)
        logprobs = logprobs and logprobs[: len(ids)]
    if sequence.already_sent:
        ids, logprobs = _not_yet_sent(sequence, ids, logprobs)
        if not ids:
            return False
    request = sequence.request
    out.append(Tokens(request.id, sequence.index, ids, logprobs, reason))
    return reason is not None


def _truncate(sequence: GuardedSequence, ids: list[int]) -> str | None:
    """Cut ids (several tokens of one step) where the sequence ends; the finish reason, None if it does not end."""
    before = len(sequence.generated) - len(ids)
    for position, token in enumerate(ids):
        count = before + position + 1
        reason = None
        if token in sequence.stops and count >= sequence.min_tokens:
            reason = "stop"
        elif count >= sequence.max_tokens:
            reason = "length"
        if reason is not None:
            del ids[position + 1 :]
            del sequence.generated[count:]
            return reason
    return None


def _not_yet_sent(
    sequence: GuardedSequence, ids: list[int], logprobs: list[float] | None
) -> tuple[list[int], list[float] | None]:
    """The new ones of the ids of a sequence that was started again. Raises Diverged."""
    start = len(sequence.generated) - len(ids)
    known = sequence.already_sent[start : start + len(ids)]
    if ids[: len(known)] != known:
        raise Diverged
    if len(sequence.generated) >= len(sequence.already_sent):
        sequence.already_sent = []
    return ids[len(known) :], logprobs and logprobs[len(known) :]


def _split_prompt(
    sequence: GuardedSequence, ids: list[int], logprobs: list[float], out: list[Record]
) -> tuple[list[int], list[float] | None]:
    """The first output of a request with echo starts with its prompt; GenAI's value for the first token is made up."""
    size = len(sequence.prompt)
    sequence.echo = False
    out.append(PromptLogprobs(sequence.request.id, [None, *logprobs[1:size]]))
    return ids[size:], logprobs[size:] if sequence.logprobs else None


def emit_detailed(sequence: GuardedSequence, outputs: Mapping[int, GuardedOutput], out: list[Record]) -> bool:
    """As `emit`, for a sequence with repetition detection, or a beam search. Raises Diverged."""
    if sequence.beams:
        return emit_beams(sequence, outputs, out)
    at = len(out)
    finished = emit(sequence, outputs, out)
    last = out[-1] if len(out) > at else None
    if isinstance(last, Tokens):
        finished = _end_repetition(sequence, last) or finished
    return finished


def _end_repetition(sequence: GuardedSequence, record: Tokens) -> bool:
    """Cut a record behind the token with which the text repeats itself; whether there is one."""
    sampling, generated, tokens = sequence.request.sampling, sequence.generated, record.tokens
    assert sampling.repetition is not None
    for behind in range(len(tokens) - 1, 0 if record.reason else -1, -1):
        end = len(generated) - behind
        if end >= sequence.min_tokens and repeats(generated, end, *sampling.repetition):
            del generated[end:], tokens[len(tokens) - behind :]
            record.logprobs = record.logprobs and record.logprobs[: len(tokens)]
            record.reason = REPETITION
            return True
    return False


def emit_beams(sequence: GuardedSequence, outputs: Mapping[int, GuardedOutput], out: list[Record]) -> bool:
    """The n best results of a beam search, or all there are, best first; they all come with its end."""
    request = sequence.request
    ranked = sorted(outputs.values(), key=lambda output: output.score, reverse=True)
    for rank, output in enumerate(ranked[: request.sampling.n]):
        if rank in request.unfinished:
            ids = output.generated_ids
            reason = "stop" if ids and ids[-1] in sequence.stops else "length"
            logprobs = output.generated_log_probs if sequence.logprobs else None
            out.append(Tokens(request.id, rank, ids, logprobs, reason))
    absent = request.unfinished.intersection(range(len(ranked), request.sampling.n))
    out += [Tokens(request.id, rank, [], None, ABSENT) for rank in sorted(absent)]
    return True
