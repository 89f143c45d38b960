"""The manifest of the prefix cache on disk."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ...config.options import PRIVATE_DIRECTORY, Options, option
from ...manifest import EVERYWHERE, EngineRow, Feature, Metric, Route

CLOSE_S = 10.0
"""Seconds for which an engine that is stopped writes blocks to prefix_cache_path at most."""
_engine = partial(option, group="engine")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class DiskCacheOptions(Options):
    """The directory of the prefix cache on disk, and its size."""

    in_engine = True

    prefix_cache_path: str = _engine(
        "",
        "directory in which PAGED keeps the prefix cache on disk, also across restarts; if empty, only in memory",
        path=PRIVATE_DIRECTORY,
    )
    prefix_cache_disk_gb: float = _engine(
        8.0,
        "maximum size in GB of the files in prefix_cache_path, for all models together; the least recently used are "
        "removed",
        low=0.001,
    )


METRIC = "lean_ovms_prefix_cache_disk_"
"""The beginning of the names of its metrics."""

FEATURE = Feature(
    name="disk_cache",
    summary="keeps the prefix cache on disk, also across restarts, and lets clients save and reset it",
    title="The prefix cache",
    reference="https://docs.vllm.ai/en/stable/serving/online_serving/",
    options=DiskCacheOptions,
    routes=(
        Route("POST", "/reset_prefix_cache", "api:handle", changes=True),
        Route("POST", "/prefix_cache/reset", "api:handle", EVERYWHERE, changes=True),
        Route("POST", "/prefix_cache/restore", "api:handle_restore", EVERYWHERE, changes=True),
        Route("POST", "/prefix_cache/save", "api:handle_save", EVERYWHERE, changes=True),
    ),
    metrics=(
        Metric(
            f"{METRIC}hit_tokens_total",
            "counter",
            "prompt tokens whose blocks were read from disk; the other hits of the prefix cache were in memory",
            load_name="disk_tokens",
        ),
        Metric(f"{METRIC}bytes", "gauge", "bytes of the model's blocks in prefix_cache_path"),
        Metric(f"{METRIC}read_bytes_total", "counter", "bytes of blocks read from disk"),
        Metric(f"{METRIC}written_bytes_total", "counter", "bytes of blocks written to disk"),
        Metric(f"{METRIC}removed_bytes_total", "counter", "bytes of blocks removed to make room"),
        Metric(f"{METRIC}read_seconds_total", "counter", "time spent reading blocks"),
        Metric(f"{METRIC}write_seconds_total", "counter", "time spent writing blocks"),
        Metric(f"{METRIC}dropped_blocks_total", "counter", "blocks that left memory faster than they could be written"),
        Metric(f"{METRIC}errors_total", "counter", "blocks and files that could not be read or written"),
    ),
    engine=EngineRow(
        install="child.install:install", options=("prefix_cache_path",), records="records", close_s=CLOSE_S
    ),
)
