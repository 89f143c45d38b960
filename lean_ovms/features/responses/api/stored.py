"""Reads, deletes and cancels responses by their ids: …/responses/{id}, …/{id}/input_items, …/{id}/cancel.

https://platform.openai.com/docs/api-reference/responses. input_items include the items of earlier turns. A
background response that was created with `stream` can be streamed from any event on: `?stream=true&starting_after=N`.
"""

from __future__ import annotations

from ....api.fields import Field, FieldSet, RouteDoc
from ....api.queries import read_query
from ....api.response import any_size, json
from ....api.services import Services
from ....api.sse import HEADERS
from ....api.stored_objects import PAGE, page_response
from ....types import Request, Response
from ..service import ResponseService
from ..tables import RESPONSE

STREAMING = FieldSet((
    Field("stream", "bool", "return server-sent events instead of the object"),
    Field("starting_after", "uint", "number of the last event to skip", high=(1 << 53) - 1,
        outside="starting_after is not an unsigned integer"),
))  # fmt: skip


@RouteDoc("A stored response", query=STREAMING, stream=True, errors=(409,))
async def handle_get(request: Request, services: Services) -> Response:
    response_id, given = request.ids[0], read_query(STREAMING, request.query)
    if not given["stream"]:
        return await any_size(services.offload, await services.get(ResponseService).get(response_id))
    start = 0 if given["starting_after"] is None else given["starting_after"] + 1
    stream = await services.get(ResponseService).stream(response_id, start)
    return Response(200, list(HEADERS), stream)


@RouteDoc("Delete a response")
async def handle_delete(request: Request, services: Services) -> Response:
    response_id = request.ids[0]
    await services.get(ResponseService).delete(response_id)
    return json({"id": response_id, "object": "response", "deleted": True})


@RouteDoc("Cancel a background response", errors=(400, 409))
async def handle_cancel(request: Request, services: Services) -> Response:
    return await any_size(services.offload, await services.get(ResponseService).cancel(request.ids[0]))


@RouteDoc("Input items of a response, including those of earlier turns", query=PAGE)
async def handle_input_items(request: Request, services: Services) -> Response:
    query = read_query(PAGE, request.query)
    return page_response(*await services.get(ResponseService).store.items(RESPONSE, request.ids[0], query))
