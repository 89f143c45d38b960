"""The manifest of slots."""

from __future__ import annotations

from ...manifest import EngineRow, Feature, Route
from .options import SlotOptions

FEATURE = Feature(
    name="slots",
    summary="saves what is cached of one text to a file and reads it again, as llama.cpp's server does",
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
