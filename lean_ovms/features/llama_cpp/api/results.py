"""The objects of llama.cpp's own completion endpoints, for responses and events."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ....api.fields import Values
from ....models.generation import CompletedChoice, Generation
from ....types import Json, SamplingParams, TextPrompt, TokenLogprob, TokenPrompt
from ....util.chunked_json import serialized
from ...chat.chunks import timings
from ...chat.generation import GenerationBody
from ...sampler_chain import fields as sampler_chain


@dataclass(frozen=True, slots=True)
class CompletionCall:
    """A parsed request of llama.cpp's completion endpoints."""

    values: Values
    """The fields of the request, by llama.cpp's names."""
    generation: GenerationBody
    """The parameters that the generations of all prompts share."""
    prompts: Sequence[TextPrompt | TokenPrompt]
    """The prompts; one generation of each is started."""

    @property
    def hidden(self) -> bool:
        """Whether the request asks for no tokens, so that the one that the engine always generates is hidden."""
        return bool(self.values["n_predict"] == 0)


def head(parsed: CompletionCall, generation: Generation, index: int, predicted: int) -> Json:
    """Returns the members that every object has, except for its text.

    Args:
        parsed: The request.
        generation: The generation of the answer's prompt.
        index: The number of the answer, from 0.
        predicted: The number of its tokens so far.
    """
    counts = {"tokens_predicted": predicted, "tokens_evaluated": generation.usage.prompt_tokens}
    return {"index": index, "id_slot": parsed.generation.sampling.id_slot, **counts}


def last(
    parsed: CompletionCall, generation: Generation, index: int, choice: CompletedChoice, text: str, predicted: int
) -> Json:
    """Returns the last object of an answer, with its settings and timings.

    Args:
        parsed: The request.
        generation: The generation of the answer's prompt.
        index: The number of the answer, from 0.
        choice: The finished text, with its tokens and log probabilities.
        text: The text of this object: the whole text, or the part that was not streamed before.
        predicted: The number of tokens of the whole answer.
    """
    values, prompt = parsed.values, parsed.prompts[index // parsed.generation.sampling.n]
    word = choice.stop if isinstance(choice.stop, str) else ""
    kind = "word" if word else "limit" if choice.finish == "length" or parsed.hidden else "eos"
    found = head(parsed, generation, index, 0 if parsed.hidden else predicted)
    probs = {"n_probs": values["n_probs"], "post_sampling": values["post_sampling_probs"]}
    used = {"samplers": values, "stop": parsed.generation.output.stop, "stream": parsed.generation.stream, **probs}
    found |= {
        "content": "" if parsed.hidden else text,
        "tokens": choice.tokens if values["return_tokens"] and not parsed.hidden else [],
        "stop": True,
        "model": parsed.generation.model.name,
        "generation_settings": settings(parsed.generation.sampling, **used),
        "has_new_line": "\n" in choice.text,
        "truncated": False,
        "stop_type": kind,
        "stopping_word": word,
        "tokens_cached": found["tokens_evaluated"] + max(0, found["tokens_predicted"] - 1),  # the last one is not
        "timings": timings(replace(generation.timings, predicted=found["tokens_predicted"])),
    }
    if isinstance(prompt, TextPrompt):
        found["prompt"] = prompt.text
    if values["n_probs"] and not (parsed.hidden or parsed.generation.stream):
        plain = values["post_sampling_probs"]
        found["completion_probabilities"] = serialized(_probability(token, plain) for token in choice.logprobs)
    return found


def probabilities(tokens: Sequence[TokenLogprob], *, plain: bool) -> list[Json]:
    """Returns each token with its likeliest alternatives: with probabilities if `plain`, else their logarithms."""
    return [_probability(token, plain) for token in tokens]


def _probability(token: TokenLogprob, plain: bool) -> Json:
    others = "top_probs" if plain else "top_logprobs"
    return {**_entry(token, plain), others: [_entry(other, plain) for other in token.top]}


def _entry(token: TokenLogprob, plain: bool) -> Json:
    known = token.logprob
    shown = {"prob": known if known is None else math.exp(known)} if plain else {"logprob": known}
    return {"id": token.id, "token": token.token, "bytes": list(token.bytes), **shown}


def selected(body: Json, paths: list[str] | None) -> Json:
    """Selects members of an object by paths such as timings/prompt_n, each under its path; None for all members."""
    if not paths:
        return body
    found: Json = {}
    for path in paths:
        value: Any = body
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            found[path] = value
    return found


OFF: Json = {"n_keep": 0, "n_discard": 0, "lora": []}
"""Settings that this server does not have, with the values with which llama.cpp turns them off."""
USUAL = ("penalties", "temperature", "top_k", "min_p", "top_p")
"""The samplers of a request that asks for no others, in their order here."""


def settings(
    sampling: SamplingParams,
    *,
    samplers: Values = sampler_chain.FIELDS.defaults,
    stop: Sequence[str] = (),
    stream: bool = False,
    n_probs: int = 0,
    post_sampling: bool = False,
) -> Json:
    """Returns a request's settings as in /completion and /props; n_predict is -1 for as many tokens as fit.

    Args:
        sampling: The sampling parameters.
        samplers: The values of the fields of samplers that OpenAI's API does not have.
        stop: The stop strings.
        stream: Whether the answer is a stream.
        n_probs: The number of likeliest tokens in the answer.
        post_sampling: Whether their probabilities are returned instead of logarithms.
    """
    chain = sampling.sampler_chain or {**sampler_chain.settings_of(samplers), "samplers": list(USUAL)}
    most = -1 if sampling.max_tokens is None else sampling.max_tokens
    return {
        "seed": sampling.seeds[0],
        **{name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p", "min_p")},
        "repeat_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        **chain,
        **OFF,
        "max_tokens": most,
        "n_predict": most,
        "stop": list(stop),
        "logit_bias": [{"bias": bias, "token": token} for token, bias in sampling.logit_bias],
        "ignore_eos": sampling.ignore_eos,
        "stream": stream,
        "n_probs": n_probs,
        "post_sampling_probs": post_sampling,
    }
