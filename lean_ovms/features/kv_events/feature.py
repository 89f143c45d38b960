"""The manifest of KV cache events."""

from __future__ import annotations

from ...manifest import EngineRow, Feature
from .options import KvEventOptions

FEATURE = Feature(
    name="kv_events",
    summary="publishes what enters and leaves the prefix cache, as vLLM does, for routers that send prompts to it",
    extra="kv-events",
    packages=("zmq", "msgspec"),
    options=KvEventOptions,
    engine=EngineRow(install="child.install:install", options=("kv_events_config",)),
)
