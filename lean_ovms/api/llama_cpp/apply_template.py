"""POST /apply-template of llama.cpp's server: a conversation as the text that the model continues.

https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md. The text can be
changed and sent to /completion.
"""

from __future__ import annotations

from dataclasses import replace

from ...models.text_model import TextModel
from ...types import ChatPrompt, Json, Request, Response
from ..app import App
from ..fields import FieldSet, read
from ..generation.common_fields import (
    ADD_GENERATION_PROMPT,
    CHAT_TEMPLATE,
    CONTINUE_FINAL_MESSAGE,
    DOCUMENTS,
    MESSAGES,
    MODEL,
    TEMPLATE_KWARGS,
    TOOLS,
)
from ..generation.images import refuse_images
from ..generation.messages import chat_prompt, map_developer_role, read_messages
from ..generation.tools import read_tools
from ..response import json
from ..router import Route, RouteDoc

FIELDS = FieldSet(
    (
        MODEL,
        replace(MESSAGES, required=True),
        TOOLS[0],
        ADD_GENERATION_PROMPT,
        CONTINUE_FINAL_MESSAGE,
        TEMPLATE_KWARGS,
        DOCUMENTS,
        CHAT_TEMPLATE,
    )
)


async def handle(request: Request, app: App) -> Response:
    model, conversation = await app.parse_body(request, _read)
    return json({"prompt": await model.render(conversation)})


def _read(body: Json, app: App) -> tuple[TextModel, ChatPrompt]:
    values = read(FIELDS, body)
    model = app.default_model(values)
    tools, _ = read_tools(values["tools"], None)
    messages = map_developer_role(read_messages(values["messages"]), model)
    refuse_images(messages, "a conversation with images is more than its text")
    return model, chat_prompt({**values, "messages": messages}, tools)


DOC = RouteDoc(summary="A conversation as the text that the model continues", body=FIELDS, answer="Text")
ROUTES = [Route("POST", "/apply-template", handle, doc=DOC)]
