"""`suffix` of completions: the text between the prompt and it, by a model that was trained to fill in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...errors import BadRequest, NotFound
from ...types import Json, TextPrompt, TokenPrompt
from ..generation.fill_in import NO_TOKENS, filling_of
from ..generation.request import GenerationRequest

Prompts = Sequence[TextPrompt | TokenPrompt]


def check_suffix(values: Json) -> None:
    """Raises BadRequest for what cannot be combined with it."""
    if values["suffix"] and (values["echo"] or values["prompt_logprobs"] is not None):
        raise BadRequest("suffix cannot be combined with echo and prompt_logprobs", param="suffix")


async def filled_in(generation: GenerationRequest, prompts: Prompts) -> tuple[GenerationRequest, Iterator[TextPrompt]]:
    """The request with the model's own notation of the place. Raises RequestError.

    Each prompt is made when it is its turn: the suffix is a part of all of them.
    """
    suffix: str = generation.values["suffix"]
    texts = [prompt for prompt in prompts if isinstance(prompt, TextPrompt)]
    if len(texts) != len(prompts):
        raise BadRequest("suffix needs prompts that are strings", param="suffix")
    try:
        filling = await filling_of(generation.model)
    except NotFound:
        raise BadRequest(f"suffix is not supported: {NO_TOKENS}", param="suffix") from None
    ends = (*generation.sampling.stop_token_ids, *filling.ends)
    made = (replace(prompt, text=filling.notation.prompt(prompt.text, suffix, [])) for prompt in texts)
    return replace(generation, sampling=replace(generation.sampling, stop_token_ids=ends)), made
