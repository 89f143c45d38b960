"""GET /v1/usage: what each named API key has used of each model, as a page of OpenAI's usage API with one bucket.

https://platform.openai.com/docs/api-reference/usage. The bucket begins with the file of --api_key_usage_file, or else
with the server. Requests that were refused, or for which there was no model, are not counted.
"""

from __future__ import annotations

import time

from ...api.fields import RouteDoc
from ...api.response import json
from ...api.services import Services
from ...types import Json, Request, Response
from .keys import NamedKeys
from .usage import KeyUsage, UsageTable


@RouteDoc("The usage of each model by each named API key")
async def handle(request: Request, services: Services) -> Response:
    """Returns the usage, which is empty if the keys have no names."""
    table = services.keys.usages.total() if isinstance(services.keys, NamedKeys) else UsageTable()
    bucket = {
        "object": "bucket",
        "start_time": int(table.since),
        "end_time": int(time.time()),
        "results": [_result(usage) for usage in table.sums.values() if usage.name],
    }
    return json({"object": "page", "data": [bucket], "has_more": False, "next_page": None})


def _result(usage: KeyUsage) -> Json:
    return {
        "object": "usage.result",
        "api_key_id": usage.name,
        "model": usage.model or None,
        "num_model_requests": usage.requests,
        "num_rejected_requests": usage.rejections,
        "input_tokens": usage.prompt_tokens,
        "input_cached_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }
