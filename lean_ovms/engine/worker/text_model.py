"""Loads a model that generates text, with the pipeline that fits its files, its device and the options."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...config import EngineConfig
from ...errors import StartError
from ...manifest import ANSWERS_WITHOUT_MODEL, CHANGED_WEIGHTS, named
from ...repository import model_file
from ...types.engine import ModelInfo
from ..generation.backend import Backend
from ..generation.task import GenerationTask

if TYPE_CHECKING:
    from ..loading.pipeline_choice import Choice

log = logging.getLogger("lean_ovms.engine.worker")


def load(config: EngineConfig, wake: Callable[[], None]) -> GenerationTask:
    """Returns the task that serves the model of the options.

    Args:
        config: The options of the engine.
        wake: Ends the wait of the worker's loop.

    Raises:
        StartError: It cannot be loaded.
    """
    return GenerationTask(load_text_model(config, wake), config, wake)


@model_file.reading_once()
def load_text_model(config: EngineConfig, wake: Callable[[], None] = lambda: None) -> Backend:
    """Returns what serves the model, whose info says which pipeline was chosen.

    Args:
        config: The options of the engine.
        wake: Ends the wait of the worker's loop.

    Raises:
        StartError: It cannot be loaded.
    """
    if config.without_model:
        backend: Backend = config.part(ANSWERS_WITHOUT_MODEL).from_config(config)
        return backend
    # openvino takes 0.3 s to import, and what needs no model does without.
    from ..loading import devices, pipeline_choice, settings
    from ..loading.load_errors import TEXT_MODEL

    config, available = devices.on_device(config)
    choice = pipeline_choice.choose(config, available)
    if pipeline_choice.untested(config, choice):
        from ..paged import ir_weights

        if ir_weights.miscounts(config.model_dir / TEXT_MODEL):
            choice = pipeline_choice.miscounted(choice)
    log.info("pipeline %s: %s", *choice)
    found: Backend | None = None
    if choice.pipeline == pipeline_choice.PAGED:
        from ..paged import assemble
        from ..paged.network import NotPageable

        try:
            resolved = settings.resolve(config, settings.free_memory_bytes(), available, paged=True)
            found = assemble.load(config, resolved, wake)
        except NotPageable as error:
            choice = pipeline_choice.without_paged(config, str(error), miscounts=error.miscounts)
            if config.pipeline_type == pipeline_choice.PAGED:
                raise StartError(f"--pipeline_type PAGED: {error}; {choice.pipeline} can serve the model") from error
            log.info("pipeline %s: %s", *choice)
    if found is None:
        found = _load_other(config, choice, available)
        _say_what_is_lost(config, choice, found.info)
    found.info = replace(found.info, pipeline=choice.pipeline, pipeline_reason=choice.reason)
    return found


def _load_other(config: EngineConfig, choice: Choice, available: Sequence[str]) -> Backend:
    """Loads what a feature has in the place of the paged engine. Raises StartError."""
    try:
        row = config.composition.backend(choice.pipeline)
    except StartError as error:
        raise StartError(f"{error} ({choice.reason})") from None
    backend: Backend = named(row.package, row.load)(config, choice.pipeline, available)
    return backend


def _say_what_is_lost(config: EngineConfig, choice: Choice, info: ModelInfo) -> None:
    """Names the options and request fields that have no effect without the paged engine."""
    from ..loading import pipeline_choice

    for option in (name for row in config.composition.engine_rows for name in row.options):
        if config.value(option):
            log.warning("--%s has no effect: it needs the prefix cache of PAGED, not of %s", option, choice.pipeline)
    if config.wants(CHANGED_WEIGHTS):
        for option in config.composition.parts[CHANGED_WEIGHTS].options:
            log.warning("--%s has no effect: PAGED changes weights, and %s does not", option, choice.pipeline)
    if fields := pipeline_choice.lost_fields(config, choice, info.capabilities):
        log.warning("%s instead of PAGED, as %s: %s have no effect", choice.pipeline, choice.reason, ", ".join(fields))
