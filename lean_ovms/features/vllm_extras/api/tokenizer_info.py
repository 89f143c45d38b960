"""GET /tokenizer_info: the tokenizer's class, its special tokens and the chat template, for clients that build prompts.

As in vLLM, and without a prefix. With it lm-evaluation-harness needs no tokenizer of its own
(tokenizer_backend=remote).
"""

from __future__ import annotations

from ....api.fields import FieldSet, RouteDoc
from ....api.forms import read_query
from ....api.generation.common_fields import MODEL
from ....api.response import json
from ....api.services import Services
from ....models.text_model import TextModel
from ....types import Request, Response

QUERY = FieldSet((MODEL,))


@RouteDoc("Chat template and special tokens", query=QUERY, errors=(404, 503))
async def handle(request: Request, services: Services) -> Response:
    query = read_query(QUERY, request.query)
    model = await services.when_known(lambda: services.named_model(query, TextModel))
    template = model.chat_format.template
    tokens = {name: text for name, text in template.special_tokens.items() if text}
    known = {**model.directory.tokenizer, **tokens}
    return json({**known, "chat_template": template.source or None, "model_max_length": model.info.context_length})
