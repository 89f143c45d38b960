"""Converts outputs of the pipeline to records for the front end.

Whether a token is the last one is decided here by ids and counts. GenAI reports it as well, but reading an enum of its
binding takes 1.4 to 5.5 us, and it handles stop ids with ignore_eos differently.
"""

from __future__ import annotations

from collections.abc import Mapping

from .....engine.generation.sequence import repeats
from .....engine.protocol import ABSENT, REPETITION, PromptLogprobs, Record, SpokenTokens, Tokens
from .pipeline import GuardedOutput
from .sequence import GuardedSequence


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
