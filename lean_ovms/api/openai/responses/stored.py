"""GET and DELETE …/responses/{id}, …/responses/{id}/input_items, …/responses/{id}/cancel: responses by their ids.

https://platform.openai.com/docs/api-reference/responses. input_items include the items of earlier turns. A
background response can be streamed from any event on: `?stream=true&starting_after=N`.
"""

from __future__ import annotations

from ....types import Request, Response
from ...app import App
from ...fields import Field, query_integer
from ...response import json
from ...router import RouteDoc, for_each_prefix, id_in
from ...sse import HEADERS
from .pages import PAGE, PageQuery, flag, page_response, parameters
from .service import ResponseService

ONE = "/responses/{id}"
ITEMS = "/responses/{id}/input_items"
CANCEL = "/responses/{id}/cancel"


async def handle_get(request: Request, app: App) -> Response:
    response_id, given = id_in(request.path, ONE), parameters(request.query)
    if not flag(given, "stream"):
        return json(await app.service(ResponseService).get(response_id))
    after = query_integer(given, "starting_after")
    stream = await app.service(ResponseService).stream(response_id, 0 if after is None else after + 1)
    return Response(200, list(HEADERS), stream)


async def handle_delete(request: Request, app: App) -> Response:
    response_id = id_in(request.path, ONE)
    await app.service(ResponseService).delete(response_id)
    return json({"id": response_id, "object": "response", "deleted": True})


async def handle_cancel(request: Request, app: App) -> Response:
    return json(await app.service(ResponseService).cancel(id_in(request.path, CANCEL)))


async def handle_input_items(request: Request, app: App) -> Response:
    query = PageQuery.of(request.query)
    return page_response(*await app.service(ResponseService).store.input_items(id_in(request.path, ITEMS), query))


STREAMING = (
    Field(name="stream", kind="bool", help="server-sent events instead of the object"),
    Field(name="starting_after", kind="uint", high=(1 << 53) - 1, help="number of the last event to skip"),
)
GET = RouteDoc(summary="A stored response", query=STREAMING, answer="Response", chunks="ResponseEvent")
CANCELLING = RouteDoc(summary="Cancel a background response", answer="Response", errors=(400,))
INPUT_ITEMS = RouteDoc(summary="Input items of a response, earlier turns included", query=PAGE, answer="Items")

ROUTES = [
    *for_each_prefix("GET", ONE, handle_get, doc=GET),
    *for_each_prefix("DELETE", ONE, handle_delete, doc=RouteDoc(summary="Delete a response", answer="Deleted")),
    *for_each_prefix("POST", CANCEL, handle_cancel, doc=CANCELLING),
    *for_each_prefix("GET", ITEMS, handle_input_items, doc=INPUT_ITEMS),
]
