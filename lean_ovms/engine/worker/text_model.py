"""Loads a model that generates text with the pipeline that suits its files, its device and the options."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from ...config import EngineConfig
from ...errors import StartError
from ...manifest import ANSWERS_WITHOUT_MODEL, named
from ...repository import model_file
from ..generation.backend import Backend
from ..generation.task import GenerationTask
from ..loading.pipeline_choice import PAGED, Choice, obstacle

log = logging.getLogger("lean_ovms.engine.worker")

ONLY_PAGED = "this server only has the pipeline PAGED"


def load(config: EngineConfig, wake: Callable[[], None]) -> GenerationTask:
    """Loads the model that the options name, and returns the task that serves it. Raises StartError."""
    backend = load_text_model(config, wake)
    backend.wake = wake
    return GenerationTask(backend, config, wake)


def load_text_model(config: EngineConfig, wake: Callable[[], None] = lambda: None) -> Backend:
    """Loads the model, and returns its Backend, whose `info` says which pipeline was chosen. Raises StartError."""
    if config.without_model:
        backend: Backend = config.part(ANSWERS_WITHOUT_MODEL).from_config(config)
        return backend
    # openvino takes 0.3 s to import, and an engine without a model does not need it.
    from ..loading import settings

    config, available = settings.on_device(config)
    choice = choose(config, available)
    log.info("pipeline %s: %s", *choice)
    found: Backend | None = None
    if choice.pipeline == PAGED:
        from ..paged import assemble
        from ..paged.network import NotPageable

        try:
            resolved = settings.resolve(config, settings.free_memory_bytes(), available, paged=True)
            found = assemble.load(config, resolved, wake)
        except NotPageable as error:
            others = other_pipelines(config, available)
            if others is None:
                raise StartError(f"{ONLY_PAGED}, which cannot serve this model: {error}") from error
            choice = others.without_paged(str(error), miscounts=error.miscounts)
            if config.pipeline_type == PAGED:
                raise StartError(f"--pipeline_type PAGED: {error}; {choice.pipeline} can serve the model") from error
            log.info("pipeline %s: %s", *choice)
    if found is None:
        others = other_pipelines(config, available)
        assert others is not None
        if model_file.is_one(config.model_dir):
            from ..paged.network import file_of

            if (single := file_of(config.model_dir)) is not None:
                single.without_images(config, f"{choice.pipeline} does not read images of it ({choice.reason})")
        found = others.load(choice)
    found.info = replace(found.info, pipeline=choice.pipeline, pipeline_reason=choice.reason)
    return found


class OtherPipelines(Protocol):
    """The pipelines with which a feature can serve a model instead of the paged engine."""

    def choose(self, obstacle: str) -> Choice:
        """Returns the pipeline for a model, given what keeps the paged engine from it, or "". Raises StartError."""

    def without_paged(self, reason: str, *, miscounts: bool) -> Choice:
        """Returns the pipeline for a model that the paged engine cannot serve for this reason. Raises StartError.

        `miscounts` says whether the pipeline would compute all tokens of a step with the same position.
        """

    def load(self, choice: Choice) -> Backend:
        """Loads the model with the chosen pipeline. Raises StartError."""


def other_pipelines(config: EngineConfig, available: Sequence[str]) -> OtherPipelines | None:
    """Returns the pipelines besides the paged engine on the available devices; None if the server has none."""
    row = config.composition.backend
    found: OtherPipelines | None = None if row is None else named(row.package, row.make)(config, available)
    return found


def choose(config: EngineConfig, available: Sequence[str]) -> Choice:
    """Returns the pipeline that --pipeline_type selects; AUTO selects the paged engine if it can serve the model.

    Args:
        config: The options of the engine.
        available: The names of OpenVINO's devices.

    Raises:
        StartError: The server or the model does not support the value.
    """
    asked, reason = config.pipeline_type, ""
    if asked == "ASR":
        raise StartError(f"--pipeline_type ASR: {config.model_dir} is not a model for speech recognition")
    if asked == PAGED:
        return Choice(PAGED, "as --pipeline_type says")
    if asked == "AUTO" and not (reason := obstacle(config)):
        return Choice(PAGED, "nothing in the options or the model needs another pipeline")
    others = other_pipelines(config, available)
    if others is None:
        left_out = f"--pipeline_type {asked} needs a feature that was left out"
        raise StartError(f"{ONLY_PAGED}: {reason or left_out}")
    return others.choose(reason)
