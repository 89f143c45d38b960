"""Loads one of openvino_genai's pipelines, on an existing device."""

from __future__ import annotations

from ....engine.loading import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
from collections.abc import Sequence

from ....config import EngineConfig
from ....engine.loading.settings import free_memory_bytes, resolve
from .continuous import ContinuousPipeline
from .guard.backend import GuardedPipeline
from .guard.pipeline import Pipeline
from .omni import OmniPipeline
from .settings import resolve_stateful
from .stateful import StatefulPipeline
from .vlm_continuous import VlmContinuous
from .vlm_stateful import VlmStateful

BATCHED = {"LM_CB": ContinuousPipeline, "VLM_CB": VlmContinuous}
STATEFUL: dict[str, type[StatefulPipeline]] = {"LM": StatefulPipeline, "VLM": VlmStateful, "OMNI": OmniPipeline}


def load_guarded(config: EngineConfig, kind: str, available: Sequence[str]) -> GuardedPipeline:
    """Loads a pipeline as a backend of the engine.

    Args:
        config: The options.
        kind: A value of --pipeline_type other than AUTO and PAGED.
        available: OpenVINO's devices.

    Raises:
        StartError: The model cannot be loaded; the message is the reason, in one line.
    """
    return GuardedPipeline.from_config(load(config, kind, available), config)


def load(config: EngineConfig, kind: str, available: Sequence[str]) -> Pipeline:
    """Loads a pipeline without its guard. Raises StartError if the model cannot be loaded."""
    if kind in BATCHED:
        return BATCHED[kind](config, resolve(config, free_memory_bytes(), available))
    return STATEFUL[kind](config, resolve_stateful(config, available))
