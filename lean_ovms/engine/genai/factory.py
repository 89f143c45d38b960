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

BATCHED = {"LM_CB": ContinuousPipeline, "VLM_CB": VlmContinuous}
STATEFUL: dict[str, type[StatefulPipeline]] = {"LM": StatefulPipeline, "VLM": VlmStateful, "OMNI": OmniPipeline}


def load(config: EngineConfig, kind: str, available: Sequence[str]) -> Pipeline:
    """Returns the loaded pipeline; kind: as in Choice, but PAGED. Raises StartError with the reason in one line."""
    if kind in BATCHED:
        return BATCHED[kind](config, resolve(config, free_memory_bytes(), available))
    return STATEFUL[kind](config, resolve_stateful(config, available))
