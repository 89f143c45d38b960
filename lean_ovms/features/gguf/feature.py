"""The manifest of GGUF files."""

from __future__ import annotations

from ...manifest import Feature, FormatRow

FEATURE = Feature(
    name="gguf",
    summary="serves GGUF files, the form in which llama.cpp has models, as they are",
    formats=(
        FormatRow(name="GGUF", suffix=".gguf", file="model_file:GgufFile", network="child.engine_file:GgufEngineFile"),
    ),
)
