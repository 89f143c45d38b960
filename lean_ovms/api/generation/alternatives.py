"""Log probabilities beside those of the chosen tokens: top_logprobs, logprob_token_ids, prompt_logprobs.

openvino_genai reports those of the chosen tokens only; the response to a request for more has a Warning header.
"""

from __future__ import annotations

from dataclasses import replace

from ...errors import BadRequest
from ...types import Json, SamplingParams

Found = tuple[SamplingParams, list[str]]
MAX_ENTRIES, MAX_STREAMED_ENTRIES = 1 << 18, 1 << 13
ENTRY_BYTES = 64
MANY = 1000
"""More alternatives of one token are some work for the event loop: of few tokens only, and not in streams."""


def read(values: Json, sampling: SamplingParams, *, known: bool, limit: int, vocab: int) -> Found:
    """The sampling parameters with what is requested, and a warning for what is not known. Raises BadRequest.

    known: the engine reports alternatives. limit: --max_logprobs, -1 for the whole vocabulary. vocab: its size, which
    -1 in a request stands for.
    """
    name = "top_logprobs" if "top_logprobs" in values else "logprobs"
    values.update({field: vocab for field in (name, "prompt_logprobs") if values.get(field) == -1})
    limit = vocab if limit < 0 else limit
    requested, prompt, ids = values[name] or 0, values.get("prompt_logprobs"), values["logprob_token_ids"]
    for field, number in ((name, requested), ("prompt_logprobs", prompt or 0)):
        if number > limit:
            raise BadRequest(f"{field} exceeds limit of this server: {limit}", param=field)
    if not known:
        return sampling, _unknown(values, sampling)
    if values["stream"] and prompt:
        raise BadRequest("prompt_logprobs are not available when stream is true", param="prompt_logprobs")
    if name == "top_logprobs" and requested and not sampling.logprobs:
        raise BadRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    if requested:
        sampling = replace(sampling, top_logprobs=requested)
    check_many(sampling, name, stream=values["stream"])
    if ids:  # as in vLLM: instead of the likeliest
        sampling = replace(sampling, logprobs=True, logprob_token_ids=ids)
    if sampling.prompt_logprobs or prompt is not None:
        echoed = requested if sampling.prompt_logprobs else 0
        sampling = replace(sampling, prompt_logprobs=True, prompt_top_logprobs=max(echoed, prompt or 0))
    return sampling, []


def response_size(sampling: SamplingParams, prompt_tokens: int, *, stream: bool, copies: int = 1) -> int:
    """Bytes, roughly, that the log probabilities of all prompts take in a response. Raises BadRequest.

    copies: choices that show those of a prompt. They are written at 5 us a token and alternative: beside the event
    loop if they are many, but not in streams.
    """
    if not sampling.prompt_logprobs:
        return 0
    entries = prompt_tokens * (sampling.prompt_top_logprobs + 1) * copies
    limit = MAX_STREAMED_ENTRIES if stream else MAX_ENTRIES
    if (sampling.prompt_top_logprobs or copies > 1) and entries > limit:
        often = f" in {copies} choices" if copies > 1 else ""
        raise BadRequest(
            f"{prompt_tokens} prompt tokens with {sampling.prompt_top_logprobs} alternatives each{often} are {entries} "
            f"log probabilities; the limit is {limit}{' in a stream' if stream else ''}",
            param="logprobs",
        )
    return entries * ENTRY_BYTES


def generated_size(sampling: SamplingParams, tokens: int) -> int:
    """Bytes, roughly, that the log probabilities of so many generated tokens take in a response."""
    if not sampling.logprobs:
        return 0
    return tokens * (1 + max(sampling.top_logprobs, len(sampling.logprob_token_ids))) * ENTRY_BYTES


def check_many(sampling: SamplingParams, param: str, *, stream: bool) -> None:
    """Raises BadRequest for more alternatives of generated tokens than one response may have."""
    requested = sampling.top_logprobs
    if requested <= MANY:
        return
    if stream:
        raise BadRequest(f"{param} is at most {MANY} when stream is true", param=param)
    if sampling.max_tokens is None or requested * sampling.max_tokens * sampling.n > MAX_ENTRIES:
        why = f"{param} above {MANY} needs max_tokens; together with n at most {MAX_ENTRIES} log probabilities"
        raise BadRequest(why, param=param)


def _unknown(values: Json, sampling: SamplingParams) -> list[str]:
    """Warnings for requested alternatives that the engine cannot report.

    Raises BadRequest for alternatives of prompt tokens: clients treat the likeliest token in the response as the
    likeliest of all, and derive from it whether greedy decoding gives the scored text (lm-evaluation-harness:
    is_greedy).
    """
    if sampling.prompt_logprobs and values["logprobs"]:
        raise BadRequest(
            f"logprobs {values['logprobs']} with echo asks for the likeliest tokens at each place of the prompt, and "
            "the engine knows the log probabilities of the prompt's own tokens only: send logprobs 0 for those, or "
            "start with --pipeline_type PAGED",
            param="logprobs",
        )
    if "top_logprobs" in values:
        return ["top_logprobs holds no alternatives"] if values["top_logprobs"] else []
    greedy = sampling.temperature == 0 and sampling.beams == 1  # then the chosen token is the likeliest one
    return ["top_logprobs holds the chosen token alone"] if (values["logprobs"] or 0) > greedy else []
