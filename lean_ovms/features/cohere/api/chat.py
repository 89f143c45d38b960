"""POST /v2/chat: Cohere's chat, which vLLM serves as /cohere/v2/chat.

https://docs.cohere.com/reference/chat. Documents are passed to the chat template. There are no citations.
"""

from __future__ import annotations

from functools import partial

from ....api import sse
from ....api.fields import RouteDoc
from ....api.response import warning_headers, written
from ....api.services import Services
from ....models.generation import collect
from ....types import ChatPrompt, Json, Request, Response
from ...chat.generation import BodyReader, GenerationBody, read_offer
from ...chat.logprobs import LogprobsRequest, generated_size
from ...chat.request import read_messages
from .. import fields
from .chat_message import CohereMessageRenderer, MessageEnd, whole


@RouteDoc("The next message of a conversation, in Cohere's form", body=fields.FIELDS, stream=True)
async def handle(request: Request, services: Services) -> Response:
    body, prompt, end = await services.parse_body(request, _parse)
    generation = await body.start(prompt)
    headers = body.headers + warning_headers(generation.warnings)
    deltas, logprobs = body.deltas(generation), body.sampling.logprobs
    if body.stream:
        renderer = CohereMessageRenderer(end, logprobs=logprobs)
        return sse.response(deltas, renderer, services.config.sse_ping_s, headers, opening=renderer.start())
    try:
        [choice] = await collect(deltas, 1)
        size = generated_size(body.sampling, generation.usage.completion_tokens)
        work = partial(whole, end, choice, generation.usage, logprobs=logprobs)
        return await written(services.offload, size, work, headers)
    finally:
        await generation.aclose()


def _parse(body: Json, services: Services) -> tuple[GenerationBody, ChatPrompt, MessageEnd]:
    reader = BodyReader(fields.FIELDS, body, services)
    values = reader.values
    messages = fields.messages(values)
    reader.check_max_tokens("max_tokens")
    offer = read_offer(fields.tools(values), values["tool_choice"], parallel=None)
    messages = read_messages(messages, services.config.composition)
    logprobs = LogprobsRequest(chosen=values["logprobs"])
    generation = reader.generation(fields.named_as_chat(values), offer=offer, logprobs=logprobs)
    prompt = ChatPrompt(messages=messages, tools=offer.tools, template_kwargs=fields.template_variables(values))
    return generation, prompt, MessageEnd(values["stop_sequences"] or ())
