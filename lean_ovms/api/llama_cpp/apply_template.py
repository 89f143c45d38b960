"""POST /apply-template of llama.cpp's server: a conversation as the text that the model continues.

https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md. The text can be changed and sent
to /completion.
"""

from __future__ import annotations

from dataclasses import replace

from ...models.text_model import TextModel
from ...types import ChatPrompt, Json, Request, Response
from ..app import App
from ..fields import FieldSet, read
from ..generation.common_fields import MESSAGES, MODEL, OF_TEMPLATE
from ..generation.messages import text_conversation
from ..response import json
from ..router import Route, RouteDoc

FIELDS = FieldSet((MODEL, replace(MESSAGES, required=True), *OF_TEMPLATE))


async def handle(request: Request, app: App) -> Response:
    model, conversation = await app.parse_body(request, _read)
    return json({"prompt": await model.render(conversation)})


def _read(body: Json, app: App) -> tuple[TextModel, ChatPrompt]:
    values = read(FIELDS, body)
    model = app.default_model(values)
    return model, text_conversation(values, model, "a conversation with images is more than its text")


DOC = RouteDoc(summary="A conversation as the text that the model continues", body=FIELDS, answer="Text")
ROUTES = [Route("POST", "/apply-template", handle, doc=DOC)]
