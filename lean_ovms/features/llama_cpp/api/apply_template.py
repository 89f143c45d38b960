"""POST /apply-template of llama.cpp's server: renders a conversation as the text that the model continues.

https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md. The text can be changed and sent
to /completion.
"""

from __future__ import annotations

from dataclasses import replace

from ....api.fields import FieldSet, RouteDoc, read
from ....api.generation.common_fields import MESSAGES, MODEL, OF_TEMPLATE
from ....api.response import json
from ....api.services import Services
from ....models.text_model import TextModel
from ....types import ChatPrompt, Json, Request, Response
from ...chat.request import text_conversation

FIELDS = FieldSet((MODEL, replace(MESSAGES, required=True), *OF_TEMPLATE))


@RouteDoc("The text of a conversation's prompt, after the chat template", body=FIELDS)
async def handle(request: Request, services: Services) -> Response:
    model, conversation = await services.parse_body(request, _read)
    prompt = await model.render(conversation)
    bos = model.info.bos_token
    if bos and prompt.startswith(bos) and await model.encode([""], True) == await model.encode([bos], False):
        prompt = prompt[len(bos) :]  # /completion adds it, as to every prompt
    return json({"prompt": prompt})


def _read(body: Json, services: Services) -> tuple[TextModel, ChatPrompt]:
    values = read(FIELDS, body)
    model = services.named_model(values, TextModel)
    return model, text_conversation(
        values, "a conversation with images cannot be returned as text", services.config.composition
    )
