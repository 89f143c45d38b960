"""The manifest of openvino_genai's pipelines."""

from __future__ import annotations

from ...manifest import BackendRow, Feature
from .options import GenAiOptions

FEATURE = Feature(
    name="genai_pipelines",
    summary="serves models, devices and options that the paged engine does not, with the pipelines of openvino_genai",
    options=GenAiOptions,
    backends=(
        BackendRow(
            pipelines=("LM_CB", "LM", "VLM_CB", "VLM", "OMNI"),
            load="child.factory:load_guarded",
            options=("cache_eviction_config", "sparse_attention_config"),
        ),
    ),
)
