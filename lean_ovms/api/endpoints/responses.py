"""POST …/responses: OpenAI's Responses API with OVMS's parameters.

https://platform.openai.com/docs/api-reference/responses, contract sections 2.7, 4.5, 5.3, 6.7. Not supported: built-in
tools, files, audio, stored prompts, log probabilities of tokens that were not chosen.
"""

from __future__ import annotations

from ...errors import BadRequest, RequestError
from ...generation import Stream
from ...shapes import ByteStream, Delta, Json, Request, Response, Usage
from ..answers import json
from ..app import App
from ..fields import json_body
from ..first_call import FirstCall
from ..responses.ask import FIELDS as ASK_FIELDS
from ..responses.ask import Ask, read_ask
from ..responses.body import Body
from ..responses.events import Events
from ..responses.runs import Follower
from ..responses.shorten import shorter
from ..responses.store import Context
from ..routes import under_bases
from ..sse import HEADERS, EventStream

FIELDS = ASK_FIELDS


async def handle_create(request: Request, app: App) -> Response:
    ask = read_ask(json_body(request), app)
    context = await app.responses.store.context(ask.previous, ask.conversation, ask.items)
    generation = await start(ask, context.items)
    body = Body(model=ask.model.name, echo=ask.echo)
    if ask.background:
        return await in_background(ask, Events(body, queued=True, obfuscate=ask.obfuscate), generation, context, app)
    if ask.stream:
        stream = streamed(ask, Events(body, obfuscate=ask.obfuscate), generation, context, app)
        return Response(200, HEADERS + ask.headers, stream)
    try:
        final = await whole(generation, Events(body, silent=True), ask.sampling.n)
    finally:
        await generation.aclose()
    if ask.store:
        await app.responses.keep(final, context)
    return json(final, ask.headers)


ROUTES = under_bases("POST", "/responses", handle_create)


async def start(ask: Ask, items: list[Json]) -> Stream:
    """The running generation; with truncation auto over as much of the context as fits. Raises RequestError."""
    while True:
        try:
            generation = await ask.model.start(ask.prompt(items), ask.sampling, ask.output, truncate=ask.truncate)
            return FirstCall(generation, ask.sampling.n) if ask.one_call else generation
        except BadRequest as error:
            less = shorter(items) if ask.shorten and error.code == "context_length_exceeded" else items
            if len(less) == len(items):
                raise
            items = less


async def whole(generation: Stream, events: Events, choices: int) -> Json:
    """The final response object: the stream, read to its end; of several choices one after the other."""
    if choices == 1:
        async for deltas in generation:
            events.deltas(deltas)
    else:
        told = [delta async for deltas in generation for delta in deltas]
        events.deltas(sorted(told, key=lambda delta: delta.index))
    return events.conclude(generation.usage)


async def in_background(ask: Ask, events: Events, generation: Stream, context: Context, app: App) -> Response:
    """The response object as it begins, or its events; the generation goes on whether they are read or not."""
    run = await app.responses.launch(events, generation, context)
    if ask.stream:
        return Response(200, HEADERS + ask.headers, Follower(run, 0, app.config.sse_ping_s))
    return json(events.response(), ask.headers)


def streamed(ask: Ask, events: Events, generation: Stream, context: Context, app: App) -> ByteStream:
    """The events while they happen; the last one says that the response is kept, so it is by then."""

    async def before_end(error: RequestError | None) -> None:
        final = events.conclude(Usage() if error else generation.usage, error)
        if ask.store:
            await app.responses.keep(final, context)

    opening = b"".join(events.begin())
    return EventStream(generation, Renderer(events), app.config.sse_ping_s, opening=opening, before_end=before_end)


class Renderer:
    """Events as the bytes of a stream; they are concluded before the end."""

    def __init__(self, events: Events) -> None:
        self._events = events

    def deltas(self, deltas: list[Delta]) -> bytes:
        return b"".join(self._events.deltas(deltas))

    def end(self, usage: Usage) -> bytes:
        return b"".join(self._events.end())

    def failed(self, error: RequestError) -> bytes:
        return b"".join(self._events.end())
