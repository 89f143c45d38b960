"""GET /v1/usage: what each named API key has used, as a page of OpenAI's usage API with one bucket.

https://platform.openai.com/docs/api-reference/usage. The bucket begins with the server, or with the key if it came to
the file later; nothing of it outlives the process.
"""

from __future__ import annotations

import time

from ...observability.records import KeyUsage
from ...types import Json, Request, Response
from ..response import json
from ..route_doc import RouteDoc
from ..services import Services


@RouteDoc("What each named API key has used since the server started")
async def handle(request: Request, services: Services) -> Response:
    bucket = {
        "object": "bucket",
        "start_time": int(services.keys.started),
        "end_time": int(time.time()),
        "results": [_result(usage) for usage in services.keys.usage],
    }
    return json({"object": "page", "data": [bucket], "has_more": False, "next_page": None})


def _result(usage: KeyUsage) -> Json:
    return {
        "object": "usage.result",
        "api_key_id": usage.name,
        "num_model_requests": usage.requests,
        "num_rejected_requests": usage.rejections,
        "input_tokens": usage.prompt_tokens,
        "input_cached_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }
