"""The response header endpoint-load-metrics: how busy the model's engine is, for gateways that ask for it.

As in vLLM, it is the native HTTP form of ORCA's load report, in all responses except streams.
https://github.com/cncf/xds/blob/main/xds/data/orca/v3/orca_load_report.proto
"""

from __future__ import annotations

import orjson

from ...api.services import read_stats
from ...models.model import Model
from ...types import Response

NAME = "endpoint-load-metrics"
TIMEOUT_S = 0.2
"""The seconds for which a response waits for the engine's statistics, which come between steps."""


async def add(response: Response, form: str, model: Model | None) -> None:
    """Adds the header to a response in the form TEXT or JSON.

    It adds nothing in any other form, without a model, and to errors and streams.

    Args:
        response: The response.
        form: The requested form.
        model: The model of the request; None if it has none.
    """
    form = form.strip().upper()
    whole = isinstance(response.body, bytes) or ("Content-Type", "application/json") in response.headers
    if model is None or form not in ("TEXT", "JSON") or response.status != 200 or not whole:
        return
    if (stats := await read_stats(model.engine.stats(), TIMEOUT_S)) is None:
        return
    metrics = {
        "kv_cache_usage_perc": stats.kv_blocks_used / max(stats.kv_blocks_total, 1),
        "num_requests_waiting": float(stats.queued),
    }
    if form == "JSON":
        report = orjson.dumps({"named_metrics": metrics}).decode()
    else:
        report = ", ".join(f"named_metrics.{name}={value}" for name, value in metrics.items())
    response.headers.append((NAME, f"{form} {report}"))
