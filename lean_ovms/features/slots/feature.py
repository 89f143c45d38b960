"""The manifest of slots."""

from __future__ import annotations

from dataclasses import dataclass

from ...config.options import PRIVATE_DIRECTORY, Options, option
from ...manifest import EngineRow, Feature, Route


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class SlotOptions(Options):
    """The option for the directory in which slots are saved."""

    in_engine = True

    slot_save_path: str = option(
        "",
        "directory for the files of llama.cpp's POST /slots/{id}, to which PAGED saves the KV cache of a text, with "
        "at most prefix_cache_disk_gb in all; if empty, this endpoint does not exist",
        group="engine",
        path=PRIVATE_DIRECTORY,
    )


FEATURE = Feature(
    name="slots",
    summary="saves the KV cache of a text to a file and restores it, as llama.cpp's server does",
    title="llama.cpp: slots",
    reference="https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md",
    needs=("disk_cache",),
    options=SlotOptions,
    flags="flags.txt",
    routes=(
        Route("GET", "/slots", "api:handle"),
        Route("POST", "/slots/{id}", "api:handle_action", changes=True, by_one=True),
    ),
    engine=EngineRow(install="child.install:install", options=("slot_save_path",), records="records"),
)
