"""GET /slots, which lists running sequences, and POST /slots/{id}, which saves or restores the cache of a text.

https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md. Sequences share the KV cache here, and have no
slot of their own. So of --max_num_seqs slots the first ones are shown as running, without any details of their
requests. Saving a slot saves the cache of the text whose request named it last as id_slot. Requests that name none
use slot 0.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

from ...api.fields import Field, FieldSet, RouteDoc, read
from ...api.generation.common_fields import MODEL
from ...api.generation.sampling import MAX_SLOT
from ...api.queries import read_query
from ...api.response import json
from ...api.services import Services
from ...engine.client.interface import ModelEngine
from ...errors import BadRequest, NotSupported, Unavailable
from ...models.text_model import TextModel
from ...types import Request, Response
from .feature import SlotOptions
from .records import SlotAction, SlotDone

TIMEOUT_S = 10.0
"""The seconds that a request waits for the engine, which answers between two steps."""
MAX_NAME = 200
"""The most bytes of a file's name."""
ACTIONS = ("save", "restore", "erase")
FILENAME = Field("filename", "string", "name of the file in the directory of `--slot_save_path`; not for erase")
FIELDS = FieldSet((MODEL, FILENAME))
QUERY = FieldSet((MODEL, Field("fail_on_no_slot", "string", "answer with 503 if every slot is busy")))
ACTION_QUERY = FieldSet(
    (MODEL, Field("action", "string", "save, restore or erase", required=True, schema={"enum": list(ACTIONS)}))
)


@RouteDoc("The state of the slots, in llama.cpp's form", query=QUERY, errors=(404, 503), answer="array")
async def handle(request: Request, services: Services) -> Response:
    given = read_query(QUERY, request.query)
    model = await _model(given["model"], services)
    try:
        stats = await asyncio.wait_for(model.stats(), TIMEOUT_S)
    except asyncio.TimeoutError:
        raise Unavailable("the engine did not answer in time, since it is computing a long step") from None
    slots = model.config.max_num_seqs
    if stats.running >= slots and given["fail_on_no_slot"]:
        raise Unavailable("no slot available", code="no_slot")
    same = {"n_ctx": model.info.context_length, "speculative": bool(model.info.speculative)}
    return json([{"id": slot, **same, "is_processing": slot < stats.running} for slot in range(slots)])


@RouteDoc(
    "Save, restore or erase the cached text of a slot; needs --slot_save_path",
    body=FIELDS,
    body_optional=True,
    query=ACTION_QUERY,
    errors=(404, 501, 503, 507),
)
async def handle_action(request: Request, services: Services) -> Response:
    given = read_query(ACTION_QUERY, request.query)
    [number], action = request.ids, given["action"]
    values = await services.parse_body(request, lambda body, _: read(FIELDS, body)) if request.size else FIELDS.defaults
    model = await _model(values["model"] or given["model"], services)
    if not model.config.of(SlotOptions).slot_save_path:
        raise NotSupported("This server does not support slots action. Start it with `--slot_save_path`")
    slot = int(number) if number.isascii() and number.isdecimal() and len(number) < 10 else MAX_SLOT + 1
    if slot > MAX_SLOT:
        raise BadRequest("Invalid slot ID", param="id_slot")
    if action not in ACTIONS:
        raise BadRequest("Invalid action: it must be save, restore or erase", param="action")
    file = "" if action == "erase" else _checked(values["filename"])
    with await model.hold() as model:
        done = await _done(model, action, slot, file)
    if action == "erase":
        return json({"id_slot": slot, "n_erased": done.tokens})
    tokens, size = ("n_saved", "n_written") if action == "save" else ("n_restored", "n_read")
    counts = {tokens: done.tokens, size: done.bytes, "timings": {f"{action}_ms": round(done.ms, 3)}}
    return json({"id_slot": slot, "filename": file, **counts})


async def _done(model: TextModel, action: str, slot: int, file: str) -> SlotDone:
    """Performs an action in all processes of the model, and returns its result. Raises RequestError.

    Each process restores or erases. Only the process in which a text used the slot last saves.
    """
    engine = model.engine
    if action == "save":
        process = await _last_user(engine, slot)
        with engine.only(process):
            saved: SlotDone = await engine.call(lambda number: SlotAction(number, action, slot, file, process))
            return saved
    done: list[SlotDone] = await engine.call_each(lambda number: SlotAction(number, action, slot, file))
    tokens = max(one.tokens for one in done) if action == "restore" else sum(one.tokens for one in done)
    return replace(done[0], tokens=tokens, ms=sum(one.ms for one in done))


async def _last_user(engine: ModelEngine, slot: int) -> int:
    """Returns the number of the process in which a text used a slot last. Raises Unavailable."""
    used_s: dict[int, float] = {}
    for process in range(engine.processes):
        with suppress(Unavailable), engine.only(process):  # a process that restarts has no slots
            found: SlotDone = await engine.call(lambda number: SlotAction(number, "look", slot, ""))
            used_s[process] = found.used_s
    return max(used_s, key=used_s.__getitem__, default=0)


def _checked(name: str | None) -> str:
    """Returns the name of a file after checking that it contains no path. Raises BadRequest."""
    if not name or name[0] == "." or "/" in name or "\\" in name or not name.isprintable():
        raise BadRequest("Invalid filename", param="filename")
    if len(name.encode()) > MAX_NAME:
        raise BadRequest(f"filename has more than {MAX_NAME} bytes", param="filename")
    return name


async def _model(name: str | None, services: Services) -> TextModel:
    """Returns the model of this name, or the default one. Raises RequestError."""
    return await services.when_known(lambda: services.named_model({"model": name}, TextModel).serving())
