"""The options of the prefix cache on disk."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ...config.options import PRIVATE_DIRECTORY, Options, option

CLOSE_S = 10.0
"""Seconds for which an engine that is stopped writes blocks to prefix_cache_path at most."""
_engine = partial(option, group="engine")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class DiskCacheOptions(Options):
    """Where the prefix cache is kept, and how much of it."""

    in_engine = True

    prefix_cache_path: str = _engine(
        "",
        "directory in which PAGED keeps the prefix cache when it leaves memory, also over restarts; empty: nowhere",
        path=PRIVATE_DIRECTORY,
    )
    prefix_cache_disk_gb: float = _engine(
        8.0,
        "most GB of files in prefix_cache_path, of all models together; what was used longest ago is removed",
        low=0.001,
    )
