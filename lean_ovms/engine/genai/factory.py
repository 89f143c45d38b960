"""Loads one of openvino_genai's pipelines, on an existing device."""

from __future__ import annotations

from ..loading import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
from collections.abc import Sequence

from ...config import EngineConfig
from ..loading.settings import free_memory_bytes, resolve, resolve_stateful
from .continuous import ContinuousPipeline
from .guard.pipeline import Pipeline
from .omni import OmniPipeline
from .stateful import StatefulPipeline
from .vlm_continuous import VlmContinuous
from .vlm_stateful import VlmStateful


def load(config: EngineConfig, kind: str, available: Sequence[str]) -> Pipeline:
    """Returns the loaded pipeline; kind: as in Choice, but PAGED. Raises StartError with the reason in one line."""
    if kind == "LM":
        return StatefulPipeline(config, resolve_stateful(config, available))
    if kind == "LM_CB":
        return ContinuousPipeline(config, resolve(config, free_memory_bytes(), available))
    if kind == "VLM_CB":
        return VlmContinuous(config, resolve(config, free_memory_bytes(), available))
    if kind == "OMNI":
        return OmniPipeline(config, resolve_stateful(config, available))
    return VlmStateful(config, resolve_stateful(config, available))
