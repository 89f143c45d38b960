"""Log probabilities beside those of the chosen tokens: top_logprobs, logprob_token_ids, prompt_logprobs.

openvino_genai reports those of the chosen tokens only; the response to a request for more has a Warning header.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...errors import BadRequest
from ...models.text_model import TextModel
from ...types import Json, SamplingParams

MAX_ENTRIES, MAX_STREAMED_ENTRIES = 1 << 18, 1 << 13
ENTRY_BYTES = 64
MANY = 1000
"""More alternatives of one token are some work for the event loop: of few tokens only, and not in streams."""


@dataclass(slots=True, kw_only=True)
class LogprobsRequest:
    """The log probabilities that a body requests, besides logprob_token_ids. Not changed once it is built.

    chosen: those of the generated tokens. top: so many of the likeliest with each of them, by the field `param`.
    prompt: prompt_logprobs, None for none. echoed: the answer begins with the prompt, whose tokens have them too.
    """

    chosen: bool = False
    top: int = 0
    param: str = "top_logprobs"
    prompt: int | None = None
    echoed: bool = False

    def resolve(self, *, known: bool, limit: int, vocab: int) -> LogprobsRequest:
        """This request with vocab, the size of the vocabulary, in place of -1. Raises BadRequest.

        known: the engine reports alternatives; else there are none of the prompt. limit: --max_logprobs, -1 for the
        whole vocabulary.
        """
        if not self.top and self.prompt is None:
            return self
        limit = vocab if limit < 0 else limit
        top, prompt = vocab if self.top == -1 else self.top, vocab if self.prompt == -1 else self.prompt
        prompt = prompt if known else None
        for param, number in ((self.param, top), ("prompt_logprobs", prompt or 0)):
            if number > limit:
                raise BadRequest(f"{param} exceeds limit of this server: {limit}", param=param)
        return self if (top, prompt) == (self.top, self.prompt) else replace(self, top=top, prompt=prompt)

    def sampling_fields(self, sampling: SamplingParams, *, stream: bool, known: bool) -> Json:
        """The fields of SamplingParams that report what is requested. Raises BadRequest."""
        found: Json = {"logprobs": True, "prompt_logprobs": self.echoed} if self.chosen else {}
        if not known:
            return found
        if stream and self.prompt:
            raise BadRequest("prompt_logprobs are not available when stream is true", param="prompt_logprobs")
        if self.top and not self.chosen:
            raise BadRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
        check_many(self.top, sampling, self.param, stream=stream)
        if self.top:
            found["top_logprobs"] = self.top
        if sampling.logprob_token_ids:  # as in vLLM: instead of the likeliest
            found["logprobs"] = True
        echoed = self.chosen and self.echoed
        if echoed or self.prompt is not None:
            most = max(self.top if echoed else 0, self.prompt or 0)
            found |= {"prompt_logprobs": True, "prompt_top_logprobs": most}
        return found

    def unknown(self, sampling: SamplingParams) -> list[str]:
        """Warnings for requested alternatives that the engine cannot report.

        Raises BadRequest for alternatives of prompt tokens: clients treat the likeliest token in the response as the
        likeliest of all, and derive from it whether greedy decoding gives the scored text (lm-evaluation-harness:
        is_greedy).
        """
        if self.chosen and self.echoed and self.top:
            raise BadRequest(
                f"logprobs {self.top} with echo asks for the likeliest tokens at each place of the prompt, and "
                "the engine knows the log probabilities of the prompt's own tokens only: send logprobs 0 for those, or "
                "start with --pipeline_type PAGED",
                param="logprobs",
            )
        if self.param == "top_logprobs":
            return ["top_logprobs holds no alternatives"] if self.top else []
        greedy = sampling.temperature == 0 and sampling.beams == 1  # then the chosen token is the likeliest one
        return ["top_logprobs holds the chosen token alone"] if self.top > greedy else []


def require_alternatives(model: TextModel, what: str) -> None:
    """Raises BadRequest if the model's engine reports only the chosen tokens. what: needs the others."""
    if "alternatives" not in model.capabilities:
        raise BadRequest(
            f"{what} needs log probabilities of tokens that were not chosen, which this model's pipeline does not "
            "report: start with --pipeline_type PAGED",
            param="model",
            code="not_supported",
        )


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


def check_many(top: int, sampling: SamplingParams, param: str, *, stream: bool, prompts: int = 1) -> None:
    """Raises BadRequest for more alternatives of generated tokens, `top` of each, than one response may have."""
    if top <= MANY:
        return
    if stream:
        raise BadRequest(f"{param} is at most {MANY} when stream is true", param=param)
    if sampling.max_tokens is None or top * sampling.max_tokens * prompts * sampling.n > MAX_ENTRIES:
        why = f"{param} above {MANY} needs max_tokens; together with n at most {MAX_ENTRIES} log probabilities"
        raise BadRequest(why, param=param)
