"""The log probabilities that a request asks for, their size in its response, and their forms there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain

from ...errors import BadRequest
from ...models.text_model import TextModel
from ...types import Json, SamplingParams, TokenLogprob
from ...util.chunked_json import Written, serialized

MAX_ENTRIES, MAX_STREAMED_ENTRIES = 1 << 18, 1 << 13
"""The most log probabilities of a request's prompts and answers in a response, and in a stream."""
ENTRY_BYTES = 64
"""The approximate size of a log probability in JSON, in bytes."""
ID_BYTES = 6
"""The approximate size of a token id in JSON, in bytes."""
MANY = 1000
"""The number of alternatives per token above which a request must limit its tokens, and not stream."""


@dataclass(slots=True, kw_only=True)
class LogprobsRequest:
    """The log probabilities that a body requests, apart from logprob_token_ids. It is not changed once it is built."""

    chosen: bool = False
    """Whether the log probabilities of the generated tokens are requested."""
    top: int = 0
    """How many of the likeliest alternatives are requested for each token; -1 for the whole vocabulary."""
    param: str = "top_logprobs"
    """The name of the field that set `top`, for errors."""
    prompt: int | None = None
    """The value of prompt_logprobs; None if no log probabilities of the prompt are requested."""
    echoed: bool = False
    """Whether the answer repeats the prompt, whose tokens then get log probabilities too."""

    def resolve(self, *, known: bool, limit: int, vocab: int) -> LogprobsRequest:
        """Returns this request with -1 replaced by the size of the vocabulary.

        Args:
            known: Whether the engine reports tokens that were not chosen. If not, those of the prompt are dropped.
            limit: The value of --max_logprobs, -1 for the whole vocabulary.
            vocab: The size of the vocabulary.

        Raises:
            BadRequest: More alternatives are requested than the limit allows.
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
        """Returns the SamplingParams fields that make the engine report what is requested. Raises BadRequest."""
        found: Json = {"logprobs": True, "prompt_logprobs": self.echoed} if self.chosen else {}
        if not known:
            return found
        if stream and self.prompt:
            raise BadRequest("prompt_logprobs are not available when stream is true", param="prompt_logprobs")
        if self.top and not self.chosen:
            raise BadRequest("top_logprobs requires logprobs to be true", param="top_logprobs")
        check_many(self.top, sampling, self.param, stream=stream)
        if self.top:
            found["top_logprobs"] = self.top
        if sampling.logprob_token_ids:  # these tokens take the place of the likeliest ones, as vLLM has it
            found["logprobs"] = True
        echoed = self.chosen and self.echoed
        if echoed or self.prompt is not None:
            most = max(self.top if echoed else 0, self.prompt or 0)
            found |= {"prompt_logprobs": True, "prompt_top_logprobs": most}
        return found

    def unknown(self, sampling: SamplingParams) -> list[str]:
        """Returns warnings for requested alternatives that the engine cannot report.

        Raises BadRequest for alternatives of prompt tokens: clients treat the likeliest token in the response as the
        likeliest of all, and derive from it whether greedy decoding gives the scored text (lm-evaluation-harness:
        is_greedy).
        """
        if self.chosen and self.echoed and self.top:
            raise BadRequest(
                f"logprobs {self.top} with echo asks for the likeliest tokens at each position of the prompt, but this "
                "pipeline only reports the prompt's own tokens: send logprobs 0 to get those, or start the server with "
                "--pipeline_type PAGED",
                param="logprobs",
            )
        if self.param != "logprobs":
            return ["top_logprobs is empty: this pipeline reports no alternatives"] if self.top else []
        greedy = sampling.temperature == 0 and sampling.beams == 1  # then the chosen token is the likeliest one
        return ["top_logprobs only contains the generated tokens"] if self.top > greedy else []


def require_alternatives(model: TextModel, what: str) -> None:
    """Raises BadRequest if the engine reports only the chosen tokens, although the field `what` needs others."""
    if "alternatives" not in model.capabilities:
        raise BadRequest(
            f"{what} needs the log probabilities of tokens that were not generated, which this model's pipeline does "
            "not report: start the server with --pipeline_type PAGED",
            param="model",
            code="not_supported",
        )


def response_size(sampling: SamplingParams, prompt_tokens: int, *, stream: bool, copies: int = 1) -> int:
    """Estimates the size in bytes of the log probabilities of a request's prompts in the response.

    Writing them takes 5 us for each token and alternative. Large responses are written outside the event loop, except
    streams, which have a lower limit.

    Args:
        sampling: The parameters of the request.
        prompt_tokens: The number of tokens of all prompts together.
        stream: Whether the response is a stream.
        copies: How many choices repeat the log probabilities of the same prompt.

    Raises:
        BadRequest: The log probabilities exceed the limit.
    """
    if not sampling.prompt_logprobs:
        return 0
    entries = prompt_tokens * (sampling.prompt_top_logprobs + 1) * copies
    limit = MAX_STREAMED_ENTRIES if stream else MAX_ENTRIES
    if (sampling.prompt_top_logprobs or copies > 1) and entries > limit:
        often = f" in {copies} choices" if copies > 1 else ""
        raise BadRequest(
            f"{prompt_tokens} prompt tokens with {sampling.prompt_top_logprobs} alternatives each{often} need "
            f"{entries} log probabilities; the limit is {limit}{' in a stream' if stream else ''}",
            param="logprobs",
        )
    return entries * ENTRY_BYTES


def generated_size(sampling: SamplingParams, tokens: int) -> int:
    """Estimates the size in bytes of the log probabilities of `tokens` generated tokens in a response."""
    if not sampling.logprobs:
        return 0
    return tokens * (1 + max(sampling.top_logprobs, len(sampling.logprob_token_ids))) * ENTRY_BYTES


def check_many(top: int, sampling: SamplingParams, param: str, *, stream: bool, prompts: int = 1) -> None:
    """Raises BadRequest if `top` alternatives of each generated token are more than one response may have."""
    if top <= MANY:
        return
    if stream:
        raise BadRequest(f"{param} must be at most {MANY} when stream is true", param=param)
    if sampling.max_tokens is None or top * sampling.max_tokens * prompts * sampling.n > MAX_ENTRIES:
        why = f"{param} above {MANY} requires a max_tokens that limits the response to {MAX_ENTRIES} log probabilities"
        raise BadRequest(why, param=param)


def token_name(token: TokenLogprob, *, by_id: bool) -> str:
    """Returns the name of a token in log probabilities: its text, or its id if requested or if the text is cut."""
    return f"token_id:{token.id}" if by_id else token.token


def logprob_entry(token: TokenLogprob, *, by_id: bool) -> Json:
    """Returns the log probability of a token and its alternatives as OpenAI's chat and Responses APIs write it."""
    others = [{"token": token_name(t, by_id=by_id), "logprob": t.logprob, "bytes": list(t.bytes)} for t in token.top]
    return {
        "token": token_name(token, by_id=by_id),
        "logprob": token.logprob,
        "bytes": list(token.bytes),
        "top_logprobs": others,
    }


def prompt_logprobs(tokens: list[TokenLogprob], most: int) -> Written:
    """Returns vLLM's prompt_logprobs: an object keyed by token id for each prompt token, null for the first.

    The prompt's own token comes first in each object, before the `most` likeliest tokens.
    """
    return serialized(chain([None], (_by_id(token, most) for token in tokens[1:])))


def _by_id(token: TokenLogprob, most: int) -> Json:
    found = {str(token.id): {"logprob": token.logprob, "rank": token.rank, "decoded_token": token.token}}
    for rank, other in enumerate(token.top[:most], 1):
        known = {"logprob": other.logprob, "rank": rank, "decoded_token": other.token}
        found.setdefault(str(other.id), known)
    return found
