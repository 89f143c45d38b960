"""`suffix` of completions: the text between the prompt and it, by a model that was trained to fill in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...errors import BadRequest, NotFound
from ...types import TextPrompt, TokenPrompt
from ..fields import Values
from ..generation.fim import NO_TOKENS, filling_of
from ..generation.request import GenerationBody

Prompts = Sequence[TextPrompt | TokenPrompt]


def check_suffix(values: Values) -> None:
    """Raises BadRequest for what cannot be combined with it."""
    if values["suffix"] and (values["echo"] or values["prompt_logprobs"] is not None):
        raise BadRequest("suffix cannot be combined with echo and prompt_logprobs", param="suffix")


async def filled_in(
    generation: GenerationBody, prompts: Prompts, suffix: str
) -> tuple[GenerationBody, Iterator[TextPrompt]]:
    """The request with the model's own notation of the place. Raises RequestError.

    Each prompt is made when it is its turn: the suffix is a part of all of them.
    """
    texts = [prompt for prompt in prompts if isinstance(prompt, TextPrompt)]
    if len(texts) != len(prompts):
        raise BadRequest("suffix needs prompts that are strings", param="suffix")
    try:
        filling = await filling_of(generation.model)
    except NotFound:
        raise BadRequest(f"suffix is not supported: {NO_TOKENS}", param="suffix") from None
    made = (replace(prompt, text=filling.notation.prompt(prompt.text, suffix, [])) for prompt in texts)
    return generation.ending_at(filling.ends), made
