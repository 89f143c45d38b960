"""The option of slots."""

from __future__ import annotations

from dataclasses import dataclass

from ...config.options import PRIVATE_DIRECTORY, Options, option


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class SlotOptions(Options):
    """Where slots are saved."""

    in_engine = True

    slot_save_path: str = option(
        "",
        "directory for files of llama.cpp's POST /slots/{id}, in which PAGED saves what is cached of a text; together"
        " they have at most prefix_cache_disk_gb; empty: there is no such endpoint",
        group="engine",
        path=PRIVATE_DIRECTORY,
    )
