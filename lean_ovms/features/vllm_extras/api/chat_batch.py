"""POST …/chat/completions/batch: answers several conversations, one choice for each, as in vLLM.

https://docs.vllm.ai/en/stable/serving/online_serving/. All other fields are those of a chat request, and apply to each
conversation. Streams and several choices for a conversation are refused, as in vLLM.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from ....api.fields import FieldSet, RouteDoc
from ....api.response import warning_headers, written
from ....api.schemas import MESSAGES, array
from ....api.services import Services
from ....errors import BadRequest
from ....models.generation import CompletedChoice, Generation, collect
from ....types import ChatPrompt, Json, Request, Response
from ...chat.generation import check_sequences
from ...chat.logprobs import ID_BYTES, generated_size, prompt_logprobs, response_size
from ...chat.request import ALL_FIELDS, ChatRequest, choice, envelope, errors_of_input, parse_chat, read_messages
from ...completions.several import GenerationGroup, start_prompts

_OTHERWISE: dict[str, Json] = {
    "messages": {"help": "conversations, each as in chat/completions", "schema": array(MESSAGES, 1)},
    "stream": {"schema": {"enum": [False]}},
    "n": {"schema": {"minimum": 1, "maximum": 1}},
    "best_of": {"schema": {"minimum": 1, "maximum": 1}},
}
FIELDS = FieldSet(replace(field, **_OTHERWISE.get(field.name, {})) for field in ALL_FIELDS)


@RouteDoc("The next message of each conversation in a batch", body=FIELDS, other_clients=True)
async def handle(request: Request, services: Services) -> Response:
    chat, prompts = await services.parse_body(request, parse_batch)
    parsed = chat.generation
    want_ids = chat.options.token_ids or parsed.logprobs.prompt is not None
    with errors_of_input("messages"):  # a path in the messages of one conversation does not say of which
        generations = await start_prompts(parsed, prompts, echo=want_ids)
    group = GenerationGroup(generations, 1)
    try:
        size = response_size(parsed.sampling, group.usage.prompt_tokens, stream=False)
        size += ID_BYTES * group.usage.prompt_tokens if chat.options.token_ids else 0
        collected = await asyncio.gather(*(collect(parsed.deltas(generation), 1) for generation in generations))
        answers = [answer for [answer] in collected]
        size += generated_size(parsed.sampling, group.usage.completion_tokens)
        warnings = dict.fromkeys(line for generation in generations for line in generation.warnings)
        headers = parsed.headers + warning_headers(list(warnings))
        return await written(services.offload, size, lambda: full(chat, answers, generations, group), headers)
    finally:
        await group.aclose()


def parse_batch(body: Json, services: Services) -> tuple[ChatRequest, list[ChatPrompt]]:
    """Returns the request for the first conversation, and the prompts of all conversations. Raises RequestError."""
    conversations = body.get("messages")
    if not isinstance(conversations, list) or not conversations:
        raise BadRequest("messages is not a list of conversations", param="messages")
    if len(conversations) > services.config.max_prompts:
        what = (
            f"messages has {len(conversations)} conversations, more than this server's limit of "
            f"{services.config.max_prompts} (--max_prompts)"
        )
        raise BadRequest(what, param="messages")
    with _errors_of_conversation(0):
        chat = parse_chat({**body, "messages": conversations[0]}, services)
    sampling = chat.generation.sampling
    if chat.audio is not None:
        raise BadRequest("spoken answers are not supported for a batch of conversations", param="modalities")
    if chat.generation.stream:
        raise BadRequest("stream is not supported for a batch of conversations", param="stream")
    if sampling.n > 1 or sampling.beams > 1:
        raise BadRequest("n must be 1 for a batch of conversations", param="n" if sampling.n > 1 else "best_of")
    check_sequences(len(conversations), sampling, services.config, "messages")
    # The metrics field describes a single generation.
    chat = replace(chat, options=replace(chat.options, metrics=False))
    return chat, [_prompt(chat, value, place) for place, value in enumerate(conversations)]


def _prompt(chat: ChatRequest, conversation: object, place: int) -> ChatPrompt:
    if not place:
        return chat.prompt
    with _errors_of_conversation(place):
        return chat.prompt.with_messages(read_messages(conversation, chat.generation.services.config.composition))


@contextmanager
def _errors_of_conversation(place: int) -> Iterator[None]:
    """Adds the place of a conversation to errors of its messages: messages[1].content becomes messages[PLACE][1]…."""
    try:
        yield
    except BadRequest as error:
        field, found, rest = (error.param or "").partition("messages")
        if found and not field:
            error.message, error.param = f"conversation {place}: {error.message}", f"messages[{place}]{rest}"
        raise


def full(
    chat: ChatRequest, answers: list[CompletedChoice], generations: list[Generation], group: GenerationGroup
) -> Json:
    """Returns the chat.completion object, with a choice for each conversation."""
    choices = []
    for place, (answer, generation) in enumerate(zip(answers, generations, strict=True)):
        found = choice(chat, place, answer)
        if chat.options.token_ids:
            found["prompt_token_ids"] = generation.prompt_ids
        if (most := chat.generation.logprobs.prompt) is not None:
            found["prompt_logprobs"] = prompt_logprobs(generation.prompt_entries(), most)
        choices.append(found)
    return envelope(chat).full(choices, group.usage, chat.options.times(group))
