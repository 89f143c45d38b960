"""JSON Schemas of the input items, only for the OpenAPI document. They state the rules that items.py checks."""

from __future__ import annotations

from ...api.schemas import AUDIO_PART, BOOLEAN, NULL, OBJECT, ROLE, SOME_TEXT, STRING, any_of, array, const, object_of
from ...types import Json
from .items import FILE_SOURCES

_TEXTS_OF = array(object_of({"text": STRING}))
_INPUT_PART = any_of(
    object_of({"type": {"enum": ["input_text", "output_text", "text"]}, "text": STRING}),
    object_of({"type": const("refusal"), "refusal": STRING}),
    object_of({"type": const("input_image"), "image_url": any_of(STRING, object_of({"url": STRING}))}, file_id=NULL),
    object_of({"type": const("input_image"), "file_id": STRING}, image_url=NULL),
    *(object_of({"type": const("input_file"), name: STRING}, filename=any_of(STRING, NULL)) for name in FILE_SOURCES),
    AUDIO_PART,
)
_CALL = {"type": const("function_call"), "name": STRING}
_ARGUMENTS = any_of(STRING, NULL)
_OUTPUT: Json = {"output": any_of(STRING, array(_INPUT_PART))}
_CALL_ID = any_of(STRING, NULL)
MESSAGES_AND_CALLS = (
    object_of({"role": ROLE, "content": any_of(STRING, array(_INPUT_PART), NULL)}, type={"enum": ["message", None]}),
    object_of({**_CALL, "call_id": STRING}, arguments=_ARGUMENTS),
    object_of({**_CALL, "id": STRING}, call_id=_CALL_ID, arguments=_ARGUMENTS),
    object_of({"type": const("function_call_output"), **_OUTPUT}, call_id=_CALL_ID),
)
"""The schemas of items that are messages, calls of functions, and outputs of these."""
_MCP_CALL = {"server_label": STRING, "name": STRING, "arguments": STRING}
_LISTED = object_of({"name": STRING, "input_schema": OBJECT})
INPUT_ITEM = any_of(
    *MESSAGES_AND_CALLS,
    object_of({"type": const("custom_tool_call"), "call_id": STRING, "name": STRING, "input": STRING}),
    object_of({"type": const("custom_tool_call_output"), **_OUTPUT}, call_id=_CALL_ID),
    object_of({"type": const("reasoning")}, summary=any_of(_TEXTS_OF, NULL), content=any_of(_TEXTS_OF, NULL)),
    object_of({"type": const("mcp_list_tools"), "server_label": STRING, "tools": array(_LISTED)}),
    object_of({"type": {"enum": ["mcp_call", "mcp_approval_request"]}, **_MCP_CALL}),
    object_of({"type": const("mcp_approval_response"), "approval_request_id": STRING, "approve": BOOLEAN}),
    object_of({"type": const("item_reference"), "id": SOME_TEXT}),
    object_of({"id": SOME_TEXT}, type=NULL, role=NULL),
)
INPUT = any_of(SOME_TEXT, array(INPUT_ITEM, 1))
CONVERSATION = any_of(SOME_TEXT, object_of({"id": SOME_TEXT}))
