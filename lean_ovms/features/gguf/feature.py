"""The manifest of GGUF files."""

from __future__ import annotations

from ...manifest import Feature, FormatRow
from .options import GgufOptions

FEATURE = Feature(
    name="gguf",
    summary="serves GGUF files, the form in which llama.cpp has models, as they are",
    options=GgufOptions,
    flags="flags.txt",
    formats=(
        FormatRow(
            name="GGUF",
            suffix=".gguf",
            option="gguf_filename",
            usual="Q4_K_M",
            beside="mmproj",
            file="model_file:GgufFile",
            network="child.engine_file:GgufEngineFile",
        ),
    ),
)
