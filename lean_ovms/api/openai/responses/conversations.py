"""…/conversations: conversations, which responses continue, and their items.

https://platform.openai.com/docs/api-reference/conversations.
"""

from __future__ import annotations

from dataclasses import replace

from ....errors import BadRequest
from ....types import Json, Request, Response
from ...app import App
from ...fields import Field, FieldSet, read
from ...response import json, json_bytes, now
from ...router import RouteDoc, for_each_prefix, id_in, ids_in
from ...schemas import INPUT_ITEM
from .fields import METADATA
from .items import read_items
from .output_items import item_id
from .pages import PAGE, PageQuery, page_response
from .service import ResponseService

FIELDS = FieldSet(
    (
        METADATA,
        Field(
            name="items",
            kind="array",
            help="initial items, in the form of a response's input",
            schema={"items": INPUT_ITEM},
        ),
    )
)
METADATA_FIELDS = FieldSet((METADATA,))

ONE = "/conversations/{id}"
ITEMS = "/conversations/{id}/items"
ITEM = "/conversations/{id}/items/{id}"


def _conversation(body: Json, app: App) -> tuple[Json, list[Json]]:
    values = read(FIELDS, body)
    return values, read_items(values["items"] or [], "items")


async def handle_create(request: Request, app: App) -> Response:
    values, items = await app.parse_body(request, _conversation) if request.size else ({"metadata": None}, [])
    body: Json = {
        "id": item_id("conv"),
        "object": "conversation",
        "created_at": now(),
        "metadata": values["metadata"] or {},
    }
    await app.service(ResponseService).store.create_conversation(body, items)
    return json(body)


async def handle_get(request: Request, app: App) -> Response:
    return json(await app.service(ResponseService).store.conversation(id_in(request.path, ONE)))


async def handle_update(request: Request, app: App) -> Response:
    metadata = await app.parse_body(request, lambda body, _: read(METADATA_FIELDS, body)["metadata"])
    return json(await app.service(ResponseService).store.conversation(id_in(request.path, ONE), metadata or {}))


async def handle_delete(request: Request, app: App) -> Response:
    conversation_id = id_in(request.path, ONE)
    await app.service(ResponseService).store.delete_conversation(conversation_id)
    return json({"id": conversation_id, "object": "conversation.deleted", "deleted": True})


async def handle_items(request: Request, app: App) -> Response:
    query = PageQuery.of(request.query)
    store = app.service(ResponseService).store
    return page_response(*await store.conversation_items(id_in(request.path, ITEMS), query))


async def handle_add_items(request: Request, app: App) -> Response:
    _, items = await app.parse_body(request, _conversation)
    if not items:
        raise BadRequest("items missing in request", param="items")
    stored = await app.service(ResponseService).store.add_conversation_items(id_in(request.path, ITEMS), items)
    return page_response(stored, has_more=False)


def _item_of(request: Request) -> tuple[str, str]:
    conversation_id, item = ids_in(request.path, ITEM)
    return conversation_id, item


async def handle_item(request: Request, app: App) -> Response:
    item = await app.service(ResponseService).store.conversation_item(*_item_of(request))
    return json_bytes(item)


async def handle_delete_item(request: Request, app: App) -> Response:
    return json(await app.service(ResponseService).store.delete_conversation_item(*_item_of(request)))


CREATE = RouteDoc(summary="Create a conversation", body=FIELDS, body_optional=True, answer="Conversation")
UPDATE = RouteDoc(summary="Replace a conversation's metadata", body=METADATA_FIELDS, answer="Conversation")
LIST = RouteDoc(summary="A conversation's items", query=PAGE, answer="Items")
ADD = RouteDoc(
    summary="Add items to a conversation",
    body=(replace(FIELDS[1], required=True, schema={"items": INPUT_ITEM, "minItems": 1}),),
    answer="Items",
)

ROUTES = [
    *for_each_prefix("POST", "/conversations", handle_create, doc=CREATE),
    *for_each_prefix("GET", ONE, handle_get, doc=RouteDoc(summary="A conversation", answer="Conversation")),
    *for_each_prefix("POST", ONE, handle_update, doc=UPDATE),
    *for_each_prefix("DELETE", ONE, handle_delete, doc=RouteDoc(summary="Delete a conversation", answer="Deleted")),
    *for_each_prefix("GET", ITEMS, handle_items, doc=LIST),
    *for_each_prefix("POST", ITEMS, handle_add_items, doc=ADD),
    *for_each_prefix("GET", ITEM, handle_item, doc=RouteDoc(summary="An item", answer="Item")),
    *for_each_prefix("DELETE", ITEM, handle_delete_item, doc=RouteDoc(summary="Delete an item", answer="Conversation")),
]
