"""POST …/responses: OpenAI's Responses API with OVMS's parameters.

https://platform.openai.com/docs/api-reference/responses, contract sections 2.7, 4.5, 5.3, 6.7. Not supported: built-in
tools, files, audio, stored prompts, log probabilities of tokens that were not chosen.
"""

from __future__ import annotations

from ...errors import RequestError
from ...generation import Stream
from ...shapes import Delta, Json, Request, Response, Usage
from ..answers import json
from ..app import App
from ..fields import json_body
from ..responses.ask import FIELDS as ASK_FIELDS
from ..responses.ask import Ask, read_ask
from ..responses.body import Body
from ..responses.calls import FirstCall
from ..responses.events import Events
from ..routes import under_bases
from ..sse import HEADERS, EventStream

FIELDS = ASK_FIELDS


async def handle_create(request: Request, app: App) -> Response:
    ask = read_ask(json_body(request), app)
    generation = await start(ask, ask.items)
    body = Body(model=ask.model.name, echo=ask.echo)
    if ask.stream:
        events = Events(body, obfuscate=ask.obfuscate)
        stream = EventStream(generation, Renderer(events), app.config.sse_ping_s, opening=b"".join(events.begin()))
        return Response(200, HEADERS + ask.headers, stream)
    try:
        return json(await whole(generation, Events(body, silent=True), ask.sampling.n), ask.headers)
    finally:
        await generation.aclose()


ROUTES = under_bases("POST", "/responses", handle_create)


async def start(ask: Ask, items: list[Json]) -> Stream:
    """The running generation. Raises RequestError."""
    generation = await ask.model.start(ask.prompt(items), ask.sampling, ask.output, truncate=ask.truncate)
    return FirstCall(generation, ask.sampling.n) if ask.one_call else generation


async def whole(generation: Stream, events: Events, choices: int) -> Json:
    """The final response object: the stream, read to its end; of several choices one after the other."""
    if choices == 1:
        async for deltas in generation:
            events.deltas(deltas)
    else:
        told = [delta async for deltas in generation for delta in deltas]
        events.deltas(sorted(told, key=lambda delta: delta.index))
    return events.conclude(generation.usage)


class Renderer:
    """Events as the bytes of a stream that nobody keeps."""

    def __init__(self, events: Events) -> None:
        self._events = events

    def deltas(self, deltas: list[Delta]) -> bytes:
        return b"".join(self._events.deltas(deltas))

    def end(self, usage: Usage) -> bytes:
        self._events.conclude(usage)
        return b"".join(self._events.end())

    def failed(self, error: RequestError) -> bytes:
        self._events.conclude(Usage(), error)
        return b"".join(self._events.end())
