"""GET /tokenizer_info: the tokenizer's class, its special tokens and the chat template, for clients that build prompts.

As in vLLM, and without a prefix. With it lm-evaluation-harness needs no tokenizer of its own
(tokenizer_backend=remote).
"""

from __future__ import annotations

from urllib.parse import parse_qs

from ...models.text_model import TextModel
from ...types import Request, Response
from ..app import App
from ..generation.common_fields import MODEL
from ..response import json
from ..router import Route, RouteDoc


async def handle(request: Request, app: App) -> Response:
    given = parse_qs(request.query).get("model", [None])

    async def find() -> TextModel:
        return app.default_model({"model": given[-1]})

    model = await app.when_known(find)
    template = model.chat_format.template
    tokens = {name: text for name, text in template.special_tokens.items() if text}
    known = {**model.directory.tokenizer, **tokens}
    return json({**known, "chat_template": template.source or None, "model_max_length": model.info.context_length})


DOC = RouteDoc(summary="Chat template and special tokens", query=(MODEL,), answer="TokenizerInfo", errors=(404, 503))
ROUTES = [Route("GET", "/tokenizer_info", handle, doc=DOC)]
