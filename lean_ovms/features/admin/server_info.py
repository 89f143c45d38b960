"""GET /server_info: version, the start-up options that are not defaults, the models' states and engines, and the
load.

vLLM has the same path, with its own options. The response is small, as the web page's server view asks for it every
other second. It never contains the API key and other private options, and absolute paths are cut to their last part.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Any

from ..._version import __version__
from ...api.fields import RouteDoc
from ...api.response import json
from ...api.services import Services, read_stats
from ...config import Config, listed
from ...models.model import Model
from ...observability.records import log_quietly
from ...types import Json, Request, Response
from ...util.resources import resident_bytes

PATH = re.compile(r"(?<![\w.:/])(?:/[^/\s\"'=]*)+/(?=[^/\s\"'=])")
"""The directories of an absolute path."""

SUMMED = {
    "prompt_tokens": "vllm:prompt_tokens_total",
    "generation_tokens": "vllm:generation_tokens_total",
    "cached_tokens": "vllm:prefix_cache_hits_total",
    "ttft": "vllm:time_to_first_token_seconds",
    "itl": "vllm:inter_token_latency_seconds",
}
"""The members of "load" with the metrics whose sums over all models they are. They need --metrics_enable."""


@RouteDoc("Version, changed options, models and load")
async def handle(request: Request, services: Services) -> Response:
    log_quietly()
    return json(
        {
            "version": __version__,
            "options": changed_options(services.config),
            "models": {model.name: model.state for model in services.registry.served},
            "engines": {model.name: _engine(model) for model in services.registry.served if not model.parent},
            "load": await load(services),
        }
    )


def _engine(model: Model) -> Json:
    """Returns the device of a model, and the memory of its engine process if it has one."""
    memory = resident_bytes(model.engine.pids) if model.loaded else None
    return {"device": model.config.target_device, **({} if memory is None else {"memory": memory})}


async def load(services: Services) -> Json:
    """Returns the running and waiting sequences and the used share of the KV caches of all models.

    With metrics, the sums of the counters in SUMMED are added. The numbers that features report are summed over models,
    under the names of their metrics.
    """
    found = await asyncio.gather(*(read_stats(model.stats()) for model in services.registry.served))
    stats = [one for one in found if one is not None]
    blocks = sum(one.kv_blocks_total for one in stats)
    summed = {name: services.metrics.summed(family) for name, family in SUMMED.items()}
    reported = Counter[str]()
    for one in stats:
        reported.update(one.of_features)
    of_features = {
        row.load_name: reported[row.name]
        for row in services.config.composition.metrics
        if row.load_name and row.name in reported
    }
    return {
        "running": sum(one.running for one in stats),
        "waiting": sum(one.queued for one in stats),
        "kv_cache_usage": sum(one.kv_blocks_used for one in stats) / max(blocks, 1),
        **of_features,
        **{name: value for name, value in summed.items() if value is not None},
    }


def changed_options(config: Config) -> Json:
    """Returns the public options whose values are not their defaults, by name."""
    found = {row.name: config.value(row.name) for row in listed(config.without) if not row.metadata["private"]}
    defaults = {row.name: row.default for row in listed(config.without)}
    return {name: _shortened(value) for name, value in found.items() if value != defaults[name]}


def _shortened(value: Any) -> Any:
    return PATH.sub("…/", value) if isinstance(value, str) else value
