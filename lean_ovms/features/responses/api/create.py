"""POST …/responses: OpenAI's Responses API with OVMS's parameters.

https://platform.openai.com/docs/api-reference/responses,
https://github.com/openvinotoolkit/model_server/blob/main/docs/model_server_rest_api_responses.md. Not supported:
built-in tools other than those of MCP servers (server_tools.py), stored files, and stored prompts.
"""

from __future__ import annotations

import asyncio
from functools import partial

from ....api.fields import RouteDoc
from ....api.response import PieceStream, json, json_in_pieces, warning_headers
from ....api.services import INLINE_BYTES, Services
from ....api.sse import HEADERS, EventStream, Rendered
from ....errors import RequestError
from ....models.generation import DeltaStream
from ....types import ByteStream, Delta, Request, Response, Usage
from ....types.push import Sink
from ....util import chunked_json
from ...chat.request import deltas_of, errors_of_input
from .. import fields
from ..events import Events
from ..output_items import Frame, joined, pieces_of
from ..request import ResponsesRequest, parse_response, read_request
from ..response import TokenIds
from ..server_tools import ToolStream, server_tools
from ..service import ResponseService
from ..store import Context

DELTAS = 500
"""The deltas of several choices that are read at once, after the generation, which takes 1.5 ms (2026-11)."""


async def prepare(services: Services) -> None:
    """Opens the store and reads the key file before the server starts. Raises StartError if either cannot be used."""
    await services.get(ResponseService).open()


@RouteDoc("Generate a response", body=fields.ALL_FIELDS, rules=fields.SOME_INPUT, stream=True)
async def handle_create(request: Request, services: Services) -> Response:
    parsed, context = await read_request(request, services, parse_response)
    stream: DeltaStream
    loop: ToolStream | None = None
    ids, values, audio = None, parsed.values, parsed.audio
    if parsed.tools.mcp and (tools := server_tools(services.config)) is not None:
        stream = loop = await tools.start(parsed, context, services)
        parsed, warnings = loop.parsed, loop.warnings
    else:
        if audio is not None:
            await services.offload.run(0, partial(audio.file, b""))  # raises an error if the format is not available
        generation = await parsed.start(context.items, services)
        stream, warnings = deltas_of(parsed.generation.deltas(generation), audio), generation.warnings
        ids = TokenIds(generation.prompt_ids, parsed.generation.sampling.n) if values["return_token_ids"] else None
    timed = values["timings"] or values["timings_per_token"]
    body = parsed.response(ids=ids, times=(lambda: stream.timings) if timed else None)
    obfuscate, silent = parsed.generation.stream_options["include_obfuscation"], not parsed.generation.stream
    pieces = audio.pieces() if audio is not None and not silent else None
    events = Events(body, queued=values["background"], obfuscate=obfuscate, silent=silent, audio=pieces)
    if loop is not None:
        loop.events = events
    if values["background"]:
        background = await services.get(ResponseService).start_background(events, stream, context)
        if parsed.generation.stream:
            response = Response(200, list(HEADERS), PieceStream(background.follow(0, services.config.sse_ping_s)))
        else:
            response = json_in_pieces(chunked_json.pieces(events.response()))
    elif parsed.generation.stream:
        response = Response(200, list(HEADERS), stream_response(parsed, events, stream, context, services))
    else:
        response = json_in_pieces(await collect_response(parsed, events, stream, context, services))
    response.headers += parsed.headers + warning_headers(warnings)
    return response


@RouteDoc("How many tokens the input of a response would have", body=fields.ALL_FIELDS, rules=fields.SOME_INPUT)
async def handle_input_tokens(request: Request, services: Services) -> Response:
    """Counts the tokens of the input without generating or storing anything.

    https://platform.openai.com/docs/api-reference/responses/input-tokens
    """
    parsed, context = await read_request(request, services, parse_response)
    if parsed.tools.mcp and (tools := server_tools(services.config)) is not None:
        parsed = await tools.with_tools(parsed, context, services)
    with errors_of_input("input"):
        tokens = await parsed.generation.count(await parsed.prompt(context.items, services))
    return json({"object": "response.input_tokens", "input_tokens": tokens})


async def collect_response(
    parsed: ResponsesRequest, events: Events, stream: DeltaStream, context: Context, services: Services
) -> list[bytes]:
    """Reads the stream to its end and returns the final response object as JSON, in pieces.

    With several choices, their items follow each other in the output. Audio is not kept.
    """
    deltas: list[Delta] = []
    try:
        if parsed.generation.sampling.n == 1 and parsed.audio is None:
            await stream.push_to(Sink(events.deltas))
        else:
            await stream.push_to(Sink(deltas.extend))
            deltas.sort(key=lambda delta: delta.index)
            for start in range(0, len(deltas), DELTAS):
                events.deltas(deltas[start : start + DELTAS])
                await asyncio.sleep(0)  # others have their turn
    finally:
        await stream.aclose()
    final = events.finalize(stream.usage)
    if parsed.values["store"]:
        await services.get(ResponseService).save(final, context)
    if parsed.audio is None:
        return chunked_json.pieces(final)
    samples = b"".join(delta.audio for delta in deltas)
    audio = parsed.audio
    return await services.offload.run(
        len(samples), lambda: chunked_json.pieces(audio.with_audio(final, samples)), inline_below=INLINE_BYTES
    )


def stream_response(
    parsed: ResponsesRequest, events: Events, stream: DeltaStream, context: Context, services: Services
) -> ByteStream:
    """Returns the stream of events. The response is stored before its last event, which says whether it is."""

    async def before_end(error: RequestError | None) -> None:
        final = events.finalize(Usage() if error else stream.usage, error)
        if parsed.values["store"]:
            await services.get(ResponseService).save(final, context)

    opening = b"".join(pieces_of(events.start()))
    return EventStream(
        stream, ResponseRenderer(events), services.config.sse_ping_s, opening=opening, before_end=before_end
    )


class ResponseRenderer:
    """Renders a generation as the bytes of an event stream."""

    def __init__(self, events: Events) -> None:
        self._events = events

    def deltas(self, deltas: list[Delta]) -> Rendered:
        return _joined(self._events.deltas(deltas))

    def end(self, usage: Usage) -> Rendered:
        return _joined(self._events.end())

    def failed(self, error: RequestError) -> Rendered:
        return _joined(self._events.end())


def _joined(frames: list[Frame]) -> Rendered:
    pieces = joined(frames)
    return pieces if len(pieces) > 1 else b"".join(pieces)
