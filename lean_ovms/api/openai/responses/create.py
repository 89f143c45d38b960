"""POST …/responses: OpenAI's Responses API with OVMS's parameters.

https://platform.openai.com/docs/api-reference/responses, contract sections 2.7, 4.5, 5.3, 6.7. Not supported: built-in
tools, files, audio, stored prompts, log probabilities of tokens that were not chosen.
"""

from __future__ import annotations

from ....errors import TOO_LONG, BadRequest, RequestError
from ....models.generation import DeltaStream, Generation
from ....types import ByteStream, Delta, Json, Request, Response, Usage
from ...app import App
from ...response import json, notices
from ...router import RouteDoc, for_each_prefix
from ...sse import HEADERS, EventStream
from . import fields
from .background import EventFollower
from .events import Events
from .request import ResponsesRequest, drop_oldest_turns, read_ask
from .response import Body, TokenIds
from .store import Context

FIELDS = fields.FIELDS


async def handle_create(request: Request, app: App) -> Response:
    ask = await app.parse_body(request, read_ask)
    context = await app.responses.store.context(ask.previous, ask.conversation, ask.items)
    generation = await start(ask, context.items, app)
    body = Body(
        model=ask.order.model.name,
        echo=ask.echo,
        request_id=ask.request_id,
        ids=TokenIds(generation.prompt_ids, ask.order.sampling.n) if ask.token_ids else None,
        named_by_id=ask.named_by_id,
    )
    source = ask.order.source(generation)
    if ask.background:
        response = await in_background(ask, body, source, context, app)
    elif ask.order.stream:
        response = Response(200, list(HEADERS), streamed(ask, body, source, context, app))
    else:
        response = json(await whole(ask, body, source, context, app))
    response.headers += ask.order.headers + notices(generation.notices)
    return response


ABOUT = RouteDoc(summary="A response to an input", body=fields.ROWS, answer="Response", chunks="ResponseEvent")
ROUTES = for_each_prefix("POST", "/responses", handle_create, about=ABOUT)


async def start(ask: ResponsesRequest, items: list[Json], app: App) -> Generation:
    """The running generation; with truncation auto over as much of the context as fits. Raises RequestError."""
    while True:
        try:
            return await ask.order.start(await ask.prompt(items, app), echo=ask.token_ids)
        except BadRequest as error:
            if error.param and error.param.startswith("messages"):
                error.param = "input"
            less = drop_oldest_turns(items) if ask.shorten and error.code == TOO_LONG else items
            if len(less) == len(items):
                raise
            items = less


async def whole(ask: ResponsesRequest, body: Body, generation: DeltaStream, context: Context, app: App) -> Json:
    """The final response object: the stream, read to its end; of several choices one after the other."""
    events = Events(body, silent=True)
    try:
        if ask.order.sampling.n == 1:
            async for deltas in generation:
                events.deltas(deltas)
        else:
            told = [delta async for deltas in generation for delta in deltas]
            events.deltas(sorted(told, key=lambda delta: delta.index))
    finally:
        await generation.aclose()
    final = events.finish_early(generation.usage)
    if ask.store:
        await app.responses.keep(final, context)
    return final


async def in_background(
    ask: ResponsesRequest, body: Body, generation: DeltaStream, context: Context, app: App
) -> Response:
    """The response object as it begins, or its events; the generation goes on whether they are read or not."""
    events = Events(body, queued=True, obfuscate=ask.obfuscate)
    run = await app.responses.launch(events, generation, context)
    if ask.order.stream:
        return Response(200, list(HEADERS), EventFollower(run, 0, app.config.sse_ping_s))
    return json(events.response())


def streamed(ask: ResponsesRequest, body: Body, generation: DeltaStream, context: Context, app: App) -> ByteStream:
    """The events while they happen; the last one says that the response is kept, so it is by then."""
    events = Events(body, obfuscate=ask.obfuscate)

    async def before_end(error: RequestError | None) -> None:
        final = events.finish_early(Usage() if error else generation.usage, error)
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
