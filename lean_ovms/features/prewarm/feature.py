"""The manifest of prompts that are computed ahead."""

from __future__ import annotations

from ...manifest import Feature, ModelRow, Route
from .options import PrewarmOptions

FEATURE = Feature(
    name="prewarm",
    summary="computes prompts before a model is ready, so that requests which begin alike find them cached",
    title="Prompts computed ahead",
    needs=("chat", "completions"),
    options=PrewarmOptions,
    routes=(Route("POST", "/prewarm", "api:handle", changes=True),),
    model=ModelRow(install="api:preparation", options=("prewarm",)),
)
