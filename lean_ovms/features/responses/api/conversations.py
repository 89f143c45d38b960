"""…/conversations: stored conversations, which responses can continue, and their items.

https://platform.openai.com/docs/api-reference/conversations.
"""

from __future__ import annotations

from dataclasses import replace

from ....api.fields import Field, FieldSet, RouteDoc, Values, read
from ....api.queries import read_query
from ....api.response import json, json_bytes, now, warning_headers
from ....api.services import Services
from ....api.stored_objects import METADATA, PAGE, item_id, page_response
from ....errors import BadRequest
from ....types import Json, Request, Response
from ..foreign_items import unshown
from ..items import read_items
from ..schemas import INPUT_ITEM
from ..service import ResponseService
from ..store import Store
from ..tables import CONVERSATION

FIELDS = FieldSet((
    METADATA,
    Field("items", "array", "initial items, in the form of a response's input", schema={"items": INPUT_ITEM}),
))  # fmt: skip
METADATA_FIELDS = FieldSet((replace(METADATA, required=True),))


def _store(services: Services) -> Store:
    """Returns the store of responses; called on the event loop before a body is parsed, perhaps in a thread."""
    return services.get(ResponseService).store


def _conversation(body: Json, services: Services) -> tuple[Values, list[Json], list[str]]:
    values = read(FIELDS, body)
    items = read_items(values["items"] or [], "items")
    items, unread = services.get(ResponseService).sealer.opened(items, "items")
    return values, items, unread + unshown(items, "items")


def _new_metadata(body: Json, _: Services) -> Json:
    """Returns the metadata with which to replace a conversation's; null removes all. Raises BadRequest."""
    metadata: Json | None = read(METADATA_FIELDS, body)["metadata"]
    if "metadata" not in body:
        raise BadRequest("metadata missing in request", param="metadata")
    return metadata or {}


@RouteDoc("Create a conversation", body=FIELDS, body_optional=True)
async def handle_create(request: Request, services: Services) -> Response:
    store = _store(services)
    given = await services.parse_body(request, _conversation) if request.size else None
    values, items, unread = given or ({"metadata": None}, [], [])
    body: Json = {
        "id": item_id("conv"),
        "object": "conversation",
        "created_at": now(),
        "metadata": values["metadata"] or {},
    }
    await store.create_conversation(body, items)
    return json(body, warning_headers(unread))


@RouteDoc("A conversation")
async def handle_get(request: Request, services: Services) -> Response:
    return json(await _store(services).conversation(request.ids[0]))


@RouteDoc("Replace a conversation's metadata", body=METADATA_FIELDS)
async def handle_update(request: Request, services: Services) -> Response:
    metadata = await services.parse_body(request, _new_metadata)
    return json(await _store(services).set_metadata(request.ids[0], metadata))


@RouteDoc("Delete a conversation")
async def handle_delete(request: Request, services: Services) -> Response:
    conversation_id = request.ids[0]
    await _store(services).delete(CONVERSATION, conversation_id)
    return json({"id": conversation_id, "object": "conversation.deleted", "deleted": True})


@RouteDoc("A conversation's items", query=PAGE)
async def handle_items(request: Request, services: Services) -> Response:
    conversation_id, query = request.ids[0], read_query(PAGE, request.query)
    return page_response(*await _store(services).items(CONVERSATION, conversation_id, query))


@RouteDoc(
    "Add items to a conversation",
    body=(replace(FIELDS[1], required=True, schema={"items": INPUT_ITEM, "minItems": 1}),),
)
async def handle_add_items(request: Request, services: Services) -> Response:
    store = _store(services)
    _, items, unread = await services.parse_body(request, _conversation)
    if not items:
        raise BadRequest("items missing in request", param="items")
    stored = await store.add_conversation_items(request.ids[0], items)
    response = page_response(stored, has_more=False)
    response.headers += warning_headers(unread)
    return response


@RouteDoc("An item")
async def handle_item(request: Request, services: Services) -> Response:
    return json_bytes(await _store(services).conversation_item(*request.ids))


@RouteDoc("Delete an item")
async def handle_delete_item(request: Request, services: Services) -> Response:
    return json(await _store(services).delete_conversation_item(*request.ids))
