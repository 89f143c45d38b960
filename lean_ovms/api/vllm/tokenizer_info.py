"""GET /tokenizer_info: the tokenizer's class, its special tokens and the chat template, for clients that build prompts.

As in vLLM, and without a prefix. With it lm-evaluation-harness needs no tokenizer of its own
(tokenizer_backend=remote).
"""

from __future__ import annotations

from ...models.text_model import TextModel
from ...types import Request, Response
from ..fields import FieldSet
from ..forms import read_query
from ..generation.common_fields import MODEL
from ..response import json
from ..route_doc import RouteDoc
from ..services import Services

QUERY = FieldSet((MODEL,))


@RouteDoc("Chat template and special tokens", query=QUERY, errors=(404, 503))
async def handle(request: Request, services: Services) -> Response:
    query = read_query(QUERY, request.query)
    model = await services.when_known(lambda: services.named_model(query, TextModel))
    template = model.chat_format.template
    tokens = {name: text for name, text in template.special_tokens.items() if text}
    known = {**model.directory.tokenizer, **tokens}
    return json({**known, "chat_template": template.source or None, "model_max_length": model.info.context_length})
