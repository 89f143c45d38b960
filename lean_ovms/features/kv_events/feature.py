"""The manifest of KV cache events."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ...config.options import Options, option, read_object
from ...manifest import EngineRow, Feature


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class KvEventOptions(Options):
    """The option for publishing events."""

    in_engine = True

    kv_events_config: str = option(
        "",
        "JSON object with vLLM's settings of KV cache events over ZeroMQ (lean_ovms/features/kv_events/README.md), "
        "for one model with PAGED; off if empty",
        group="engine",
        json_object=True,
    )


def of_process(config: Any, number: int) -> dict[str, str]:
    """Returns the option for one of several processes, whose number becomes vLLM's rank. Raises StartError."""
    settings = read_object("kv_events_config", config.of(KvEventOptions).kv_events_config)
    return {"kv_events_config": json.dumps({**settings, "data_parallel_rank": number})}


FEATURE = Feature(
    name="kv_events",
    summary="publishes changes of the prefix cache as vLLM does, for routers that choose a server by prompt",
    extra="kv-events",
    packages=("zmq", "msgspec"),
    options=KvEventOptions,
    engine=EngineRow(install="child.install:install", options=("kv_events_config",), of_process="feature:of_process"),
)
